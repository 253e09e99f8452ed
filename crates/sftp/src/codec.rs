//! Numbers and strings of the protocol, as bytes.

use crate::status::Failure;

/// What is left of a request.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Failure::BadMessage)?;
        self.0 = rest;
        Ok(taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Failure> {
        Ok(self.take(1)?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Failure> {
        let bytes = self.take(4)?.try_into().map_err(|_| Failure::BadMessage)?;
        Ok(u32::from_be_bytes(bytes))
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Failure> {
        let bytes = self.take(8)?.try_into().map_err(|_| Failure::BadMessage)?;
        Ok(u64::from_be_bytes(bytes))
    }

    pub(crate) fn string(&mut self) -> Result<&'a [u8], Failure> {
        let length = self.u32()?;
        self.take(usize::try_from(length).map_err(|_| Failure::BadMessage)?)
    }
}

/// A packet that is being written.
pub(crate) struct Writer(Vec<u8>);

/// Begins a packet of this kind.
pub(crate) fn packet(kind: u8) -> Writer {
    // Room for the length, which is known at the end.
    Writer(vec![0, 0, 0, 0, kind])
}

impl Writer {
    pub(crate) fn u32(&mut self, number: u32) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(crate) fn u64(&mut self, number: u64) -> &mut Self {
        self.0.extend_from_slice(&number.to_be_bytes());
        self
    }

    pub(crate) fn string(&mut self, bytes: &[u8]) -> &mut Self {
        // Nothing here is longer than a packet.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn finish(mut self) -> Vec<u8> {
        let length = u32::try_from(self.0.len() - 4).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&length.to_be_bytes());
        self.0
    }
}
