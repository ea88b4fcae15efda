//! Runs, from the outside: how one is begun, watched, paused, decided about and gone on with.

mod builder;
mod cancel;
mod config;
mod input;
mod leaving;
mod outcome;
mod paused;
mod records;
mod settlement;
mod stream;

pub use builder::RunBuilder;
pub use cancel::{Approvals, CancelHandle, Settlement};
pub use config::{
    CallLayer, Handled, InputFilter, LoopPolicy, MissingTool, ModelInput, ModelRetry, NextCall, OnDrop,
    RunHandlers,
};
pub use input::IntoInput;
pub use leaving::Leaving;
pub use outcome::{CancelledRun, FinishedRun, Outcome, RunRecord};
pub use paused::Paused;
pub use stream::RunStream;

pub(crate) use builder::Origin;
pub(crate) use cancel::Cancel;
pub(crate) use config::RunConfig;
pub(crate) use leaving::{AtEnd, EndList};
pub(crate) use records::Records;
