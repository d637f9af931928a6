//! The microVM.
