//! The repository's checks, run on itself and on planted violations.

mod files;
mod generate;
mod layers;
mod licences;
