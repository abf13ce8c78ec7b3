//! Loop devices for image files, as long as they are mounted: the kernel frees the device with the
//! last user, also after a crash. A file has one device: the file system of an unmounted volume lives on while a
//! container that has the node's directories has a file of it open, and a second one would destroy it.

use std::{
    ffi::c_void,
    fs::{self, File, OpenOptions},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::MetadataExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    io::{self, Errno},
    ioctl::{self, Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter},
};

use crate::{Error, Result};

const CONTROL: &str = "/dev/loop-control";

const DEVICES: &str = "/sys/block";

const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LOOP_SET_CAPACITY: Opcode = 0x4C07;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How often another process may take the free device first.
const ATTEMPTS: usize = 16;

/// The kernel's `struct loop_config` with its `struct loop_info64`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    /// lo_device, lo_inode, lo_rdevice, lo_offset, lo_sizelimit.
    place: [u64; 5],
    /// lo_number, lo_encrypt_type, lo_encrypt_key_size, lo_flags.
    kind: [u32; 4],
    /// lo_file_name, lo_crypt_name, lo_encrypt_key.
    names: [u8; 160],
    /// lo_init and reserved fields.
    rest: [u64; 10],
}

/// The kernel's `struct loop_info64`.
#[repr(C)]
struct LoopInfo {
    /// lo_device, lo_inode.
    file: [u64; 2],
    /// lo_rdevice, lo_offset, lo_sizelimit.
    place: [u64; 3],
    /// lo_number, lo_encrypt_type, lo_encrypt_key_size, lo_flags.
    kind: [u32; 4],
    /// lo_file_name, lo_crypt_name, lo_encrypt_key.
    names: [u8; 160],
    /// lo_init.
    rest: [u64; 2],
}

struct GetFree;

// SAFETY: the request takes no argument and returns a number.
unsafe impl Ioctl for GetFree {
    type Output = IoctlOutput;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> io::Result<IoctlOutput> {
        Ok(out)
    }
}

/// A device with a file. It is freed when this and its last mount are gone.
pub(crate) struct LoopDevice {
    pub path: PathBuf,
    _device: File,
}

fn open(path: &Path) -> Result<File> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(Error::io("open", path))
}

/// The device that a file has already.
pub(crate) fn of_file(file: &Path) -> Result<Option<LoopDevice>> {
    let meta = fs::metadata(file).map_err(Error::io("look at", file))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let wanted = [meta.dev(), meta.ino()];
    for device in crate::entries(Path::new(DEVICES))? {
        // Devices without a file have no such entry. The path is that of another mount namespace, perhaps.
        let backing = fs::read_to_string(device.join("loop/backing_file"));
        if !backing.is_ok_and(|path| path.contains(&*name)) {
            continue;
        }
        let path = Path::new("/dev").join(device.file_name().unwrap_or_default());
        // It may be freed at this moment.
        let Ok(opened) = open(&path) else { continue };
        // SAFETY: the kernel writes one `struct loop_info64`, of which every value is valid.
        let info =
            unsafe { ioctl::ioctl(opened.as_fd(), Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) };
        if info.is_ok_and(|info| info.file == wanted) {
            return Ok(Some(LoopDevice {
                path,
                _device: opened,
            }));
        }
    }
    Ok(None)
}

/// Attaches a device to a file, which has none.
pub(crate) fn attach(file: &Path) -> Result<LoopDevice> {
    let (backing, control) = (open(file)?, open(Path::new(CONTROL))?);
    let failed = |errno: Errno| Error::io("make a loop device of", file)(errno.into());
    for _ in 0..ATTEMPTS {
        // SAFETY: see GetFree.
        let number = unsafe { ioctl::ioctl(&control, GetFree) }.map_err(failed)?;
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = open(&path)?;
        let config = LoopConfig {
            fd: backing.as_raw_fd() as u32,
            block_size: 0,
            place: [0; 5],
            kind: [0, 0, 0, LO_FLAGS_AUTOCLEAR],
            names: [0; 160],
            rest: [0; 10],
        };
        // SAFETY: the kernel reads one `struct loop_config` and keeps no pointer to it.
        let set = unsafe {
            let request = Setter::<LOOP_CONFIGURE, LoopConfig>::new(config);
            ioctl::ioctl(device.as_fd(), request)
        };
        match set {
            Ok(()) => {
                return Ok(LoopDevice {
                    path,
                    _device: device,
                });
            }
            // Another process was faster.
            Err(Errno::BUSY) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    Err(failed(Errno::BUSY))
}

/// The device that is mounted on a directory.
pub(crate) fn mounted_on(dir: &Path) -> Result<PathBuf> {
    let meta = fs::metadata(dir).map_err(Error::io("look at", dir))?;
    let (major, minor) = (rustix::fs::major(meta.dev()), rustix::fs::minor(meta.dev()));
    let described = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/uevent"));
    let text = fs::read_to_string(&described).map_err(Error::io("read", &described))?;
    let name = text.lines().find_map(|line| line.strip_prefix("DEVNAME="));
    let name = name.ok_or_else(|| Error::NotADevice(dir.to_owned()))?;
    Ok(Path::new("/dev").join(name))
}

/// Updates a device to the new size of its file.
pub(crate) fn grow(device: &Path) -> Result<()> {
    let opened = OpenOptions::new().read(true).open(device);
    let opened = opened.map_err(Error::io("open", device))?;
    // SAFETY: the request takes no argument.
    let grown = unsafe { ioctl::ioctl(&opened, NoArg::<LOOP_SET_CAPACITY>::new()) };
    grown.map_err(|errno| Error::io("resize", device)(errno.into()))
}
