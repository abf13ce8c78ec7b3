//! Small files of ours: written whole or not at all.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

use serde::{Serialize, de::DeserializeOwned};

use crate::error::{Error, Result};

/// Writes a file beside its place and moves it there.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let write = || -> io::Result<()> {
        let beside = path.with_extension("new");
        let mut file = File::create(&beside)?;
        file.write_all(bytes)?;
        fs::rename(&beside, path)
    };
    write().map_err(Error::file(path))
}

/// [`replace`] with JSON.
pub fn save(path: &Path, value: &impl Serialize) -> Result<()> {
    let bytes = serde_json::to_vec(value).map_err(|error| damaged(path, error))?;
    replace(path, &bytes)
}

/// Reads JSON.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T> {
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
pub fn save_message(path: &Path, message: &impl prost::Message) -> Result<()> {
    replace(path, &message.encode_to_vec())
}

/// Reads a protocol message.
pub fn load_message<T: prost::Message + Default>(path: &Path) -> Result<T> {
    let bytes = fs::read(path).map_err(Error::file(path))?;
    T::decode(bytes.as_slice()).map_err(|error| damaged(path, error))
}

/// Removes a directory with everything in it; that it is missing is fine.
pub fn remove_dir(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result.map_err(Error::file(path)),
    }
}
