//! The real machine behind the API.

use event_manager::SubscriberOps;

use super::{MachineControl, Wake};
use crate::machine::{Events, Machine, MachineError};
use crate::spec::Spec;

impl MachineControl for Machine {
    type Error = MachineError;

    fn build(spec: &Spec, events: &mut Events) -> Result<Self, MachineError> {
        let machine = Machine::build(spec, events)?;
        events.add_subscriber(Box::new(Wake::on(machine.ended())));
        Ok(machine)
    }

    fn start(&mut self) -> Result<(), MachineError> {
        Machine::start(self)
    }

    fn pause(&mut self) -> Result<(), MachineError> {
        Machine::pause(self)
    }

    fn resume(&mut self) -> Result<(), MachineError> {
        Machine::resume(self)
    }

    fn ctrl_alt_del(&self) -> Result<(), MachineError> {
        Machine::ctrl_alt_del(self)
    }
}
