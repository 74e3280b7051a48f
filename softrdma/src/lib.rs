//! Software iWARP endpoint: MPA, DDP and RDMAP without I/O.
