//! Guest memory as vCPUs and devices see it.

/// All of a machine's memory. Cloning it copies references, not memory.
pub type GuestMemory = vm_memory::GuestMemoryMmap<()>;
