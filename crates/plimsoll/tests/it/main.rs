//! The program as scripts and people meet it: its own process, its streams, its exit codes.

mod check;
mod help;
mod model_folder;
mod program;
mod serving;
mod sim;
mod traces;
