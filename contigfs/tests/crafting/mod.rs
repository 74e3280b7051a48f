//! What is done to images, and what they are put to.
#![allow(unreachable_pub, dead_code)]

pub mod fs_damage;
pub mod guard;
pub mod image;
pub mod input;
pub mod log_damage;
pub mod untouched;
pub mod use_it;
