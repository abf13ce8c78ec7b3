//! Small state files: written atomically.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    error::{Error, Result},
    remove_tree::remove_tree,
};

/// Writes a new file and renames it into place.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        fs::rename(&beside, path)
    };
    write().map_err(Error::file(path))
}

/// [`replace`] with JSON.
pub(crate) fn save(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(value).map_err(|error| damaged(path, error))?;
    replace(path, &bytes)
}

/// Appends a record to a file of JSON lines, of which the last complete one counts. Unlike [`save`]
/// it creates no file, which saves most of the cost.
pub(crate) fn record(path: &Path, value: &impl Serialize) -> Result<()> {
    // A leading newline ends a line that a crash left torn.
    let mut line = vec![b'\n'];
    serde_json::to_writer(&mut line, value).map_err(|error| damaged(path, error))?;
    line.push(b'\n');
    let mut options = OpenOptions::new();
    let file = options.create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(&line))
        .map_err(Error::file(path))
}

/// The last record of such a file.
pub(crate) fn load_last<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    let mut lines = bytes.split(|byte| *byte == b'\n').rev();
    lines
        .find_map(|line| serde_json::from_slice(line).ok())
        .ok_or_else(|| damaged(path, "incomplete record"))
}

/// Reads JSON.
pub(crate) fn load<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    serde_json::from_slice(&bytes).map_err(|error| damaged(path, error))
}

fn damaged(path: &Path, error: impl ToString) -> Error {
    Error::Damaged {
        path: path.to_path_buf(),
        message: error.to_string(),
    }
}

/// Saves a protocol message.
pub(crate) fn save_message(path: &Path, message: &impl prost::Message) -> Result<()> {
    replace(path, &message.encode_to_vec())
}

/// Reads a protocol message.
pub(crate) fn load_message<T: prost::Message + Default>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    T::decode(bytes.as_slice()).map_err(|error| damaged(path, error))
}

/// Removes a directory tree. A missing one is no error.
pub(crate) fn remove_dir(path: &Path) -> Result<()> {
    remove_tree(path).map_err(Error::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_whole_record_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("status.json");
        record(&path, &1).unwrap();
        record(&path, &2).unwrap();
        assert_eq!(load_last::<i32>(&path).unwrap(), 2);
        // A torn write of the next record.
        let mut torn = fs::read(&path).unwrap();
        torn.extend_from_slice(b"\n[3");
        fs::write(&path, torn).unwrap();
        assert_eq!(load_last::<i32>(&path).unwrap(), 2);
        record(&path, &4).unwrap();
        assert_eq!(load_last::<i32>(&path).unwrap(), 4);
        fs::write(&path, "").unwrap();
        assert!(load_last::<i32>(&path).is_err());
    }
}
