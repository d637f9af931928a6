//! What the host lends to devices.

pub mod console;
pub mod disk;
pub mod disk_file;
pub mod disk_map;
pub mod disk_stack;
pub mod unix;
