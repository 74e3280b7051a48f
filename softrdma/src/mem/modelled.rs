//! The lock of the standard library, but in a model that of the scheduler: the tests of [`gate`](super::gate) run what uses
//! it under many schedules.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};

thread_local! {
    /// All tasks of a model run on the thread of its test.
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
}

/// Locks that are made while this lives belong to a model.
#[derive(Debug)]
pub(super) struct Model(());

impl Model {
    pub(super) fn begin() -> Self {
        IN_MODEL.set(true);
        Self(())
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        IN_MODEL.set(false);
    }
}

#[derive(Debug)]
pub(super) enum RwLock<T> {
    Plain(std::sync::RwLock<T>),
    Modelled(shuttle::sync::RwLock<T>),
}

#[derive(Debug)]
pub(super) enum RwLockReadGuard<'a, T> {
    Plain(std::sync::RwLockReadGuard<'a, T>),
    Modelled(shuttle::sync::RwLockReadGuard<'a, T>),
}

pub(super) enum RwLockWriteGuard<'a, T> {
    Plain(std::sync::RwLockWriteGuard<'a, T>),
    Modelled(shuttle::sync::RwLockWriteGuard<'a, T>),
}

fn map<T, U>(result: LockResult<T>, guard: impl Fn(T) -> U) -> LockResult<U> {
    match result {
        Ok(inner) => Ok(guard(inner)),
        Err(poisoned) => Err(PoisonError::new(guard(poisoned.into_inner()))),
    }
}

impl<T> RwLock<T> {
    pub(super) fn new(value: T) -> Self {
        match IN_MODEL.get() {
            false => Self::Plain(std::sync::RwLock::new(value)),
            true => Self::Modelled(shuttle::sync::RwLock::new(value)),
        }
    }

    pub(super) fn read(&self) -> LockResult<RwLockReadGuard<'_, T>> {
        match self {
            Self::Plain(lock) => map(lock.read(), RwLockReadGuard::Plain),
            Self::Modelled(lock) => map(lock.read(), RwLockReadGuard::Modelled),
        }
    }

    pub(super) fn write(&self) -> LockResult<RwLockWriteGuard<'_, T>> {
        match self {
            Self::Plain(lock) => map(lock.write(), RwLockWriteGuard::Plain),
            Self::Modelled(lock) => map(lock.write(), RwLockWriteGuard::Modelled),
        }
    }
}

impl<T> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Plain(guard) => guard,
            Self::Modelled(guard) => guard,
        }
    }
}

impl<T> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        match self {
            Self::Plain(guard) => guard,
            Self::Modelled(guard) => guard,
        }
    }
}

impl<T> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        match self {
            Self::Plain(guard) => guard,
            Self::Modelled(guard) => guard,
        }
    }
}
