//! x86_64 as data: where things lie in a guest's address space, what its CPUs
//! say of themselves, and the tables that its kernel reads at boot.

pub mod acpi;
pub mod boot_params;
pub mod cpu_facts;
pub mod cpuid;
pub mod layout;
pub mod mptable;
pub mod msr;
pub mod registers;
