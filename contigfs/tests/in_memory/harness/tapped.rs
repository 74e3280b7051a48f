//! A store that somebody listens in on: what happens just between two of its calls, or instead of one.

use std::sync::{Arc, Mutex};

use contigfs::{BlockStore, ByteAddr, FormatOptions, Fs, MemStore, StoreError};
use ftl::{AtomicBatch, Lba, LbaRange, Space};

/// A call that changes something.
#[derive(Clone, Copy)]
pub enum Call<'a> {
    Write(ByteAddr, &'a [u8]),
    Commit(&'a AtomicBatch),
    Sync(LbaRange),
}

/// Is asked before each such call, and may answer it instead of the store. Not asked of what it does itself.
type Hook = Box<dyn FnMut(&MemStore, Call<'_>) -> Option<Result<(), StoreError>> + Send>;

/// A store that somebody listens in on.
pub struct Tapped {
    pub inner: MemStore,
    hook: Mutex<Option<Hook>>,
}

impl Tapped {
    pub fn new(grains: u64) -> Self {
        Self {
            inner: MemStore::new(grains),
            hook: Mutex::default(),
        }
    }

    pub fn formatted(grains: u64) -> (Arc<Self>, Arc<Fs<Arc<Self>>>) {
        let store = Arc::new(Self::new(grains));
        Fs::format(&store, &FormatOptions::default()).unwrap();
        let fs = Arc::new(Fs::mount(Arc::clone(&store)).unwrap());
        (store, fs)
    }

    pub fn tap(
        &self,
        hook: impl FnMut(&MemStore, Call<'_>) -> Option<Result<(), StoreError>> + Send + 'static,
    ) {
        *self.hook.lock().unwrap() = Some(Box::new(hook));
    }

    pub fn untap(&self) {
        *self.hook.lock().unwrap() = None;
    }

    fn asked(&self, call: Call<'_>) -> Option<Result<(), StoreError>> {
        let mut hook = self.hook.lock().unwrap().take()?;
        let answer = hook(&self.inner, call);
        *self.hook.lock().unwrap() = Some(hook);
        answer
    }
}

impl BlockStore for Tapped {
    fn read(&self, at: ByteAddr, buf: &mut [u8]) -> Result<(), StoreError> {
        self.inner.read(at, buf)
    }

    fn write(&self, at: ByteAddr, data: &[u8]) -> Result<(), StoreError> {
        let answer = self.asked(Call::Write(at, data));
        answer.unwrap_or_else(|| self.inner.write(at, data))
    }

    fn commit(&self, batch: AtomicBatch) -> Result<(), StoreError> {
        let answer = self.asked(Call::Commit(&batch));
        answer.unwrap_or_else(|| self.inner.commit(batch))
    }

    fn sync(&self, range: LbaRange) -> Result<(), StoreError> {
        let answer = self.asked(Call::Sync(range));
        answer.unwrap_or_else(|| self.inner.sync(range))
    }

    fn next_mapped(&self, range: LbaRange) -> Option<Lba> {
        self.inner.next_mapped(range)
    }

    fn space(&self) -> Space {
        self.inner.space()
    }
}
