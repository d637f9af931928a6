//! Fields of a message: fixed little-endian integers, length-prefixed bytes.

use crate::error::DecodeError;
use crate::frame::MAX_ITEMS;

/// Takes fields from a message's body, each checked against what is left.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    kind: u8,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(kind: u8, body: &'a [u8]) -> Self {
        Self { kind, rest: body }
    }

    pub(crate) fn bad(&self, field: &'static str) -> DecodeError {
        DecodeError::BadValue {
            kind: self.kind,
            field,
        }
    }

    pub(crate) fn array<const N: usize>(
        &mut self,
        field: &'static str,
    ) -> Result<[u8; N], DecodeError> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or(DecodeError::Truncated {
                kind: self.kind,
                field,
            })?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self, field: &'static str) -> Result<u8, DecodeError> {
        Ok(u8::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u16(&mut self, field: &'static str) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u32(&mut self, field: &'static str) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn u64(&mut self, field: &'static str) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array(field)?))
    }

    pub(crate) fn bool(&mut self, field: &'static str) -> Result<bool, DecodeError> {
        match self.u8(field)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(self.bad(field)),
        }
    }

    pub(crate) fn bytes(&mut self, field: &'static str) -> Result<Vec<u8>, DecodeError> {
        let len = self.u32(field)? as usize;
        let (head, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or(DecodeError::Truncated {
                kind: self.kind,
                field,
            })?;
        self.rest = rest;
        Ok(head.to_vec())
    }

    pub(crate) fn string(&mut self, field: &'static str) -> Result<String, DecodeError> {
        String::from_utf8(self.bytes(field)?).map_err(|_| self.bad(field))
    }

    pub(crate) fn option<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&mut Self, &'static str) -> Result<T, DecodeError>,
    ) -> Result<Option<T>, DecodeError> {
        self.bool(field)?.then(|| read(self, field)).transpose()
    }

    /// A counted list of at most [`MAX_ITEMS`]. The count is not believed: the
    /// list grows only as items are really there.
    pub(crate) fn list<T>(
        &mut self,
        field: &'static str,
        mut read: impl FnMut(&mut Self, &'static str) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32(field)?;
        if count > MAX_ITEMS {
            return Err(self.bad(field));
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(read(self, field)?);
        }
        Ok(items)
    }

    /// Ignores what is left: for a hello of another version.
    pub(crate) fn skip_rest(&mut self) {
        self.rest = &[];
    }

    pub(crate) fn end(self) -> Result<(), DecodeError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(DecodeError::TrailingBytes {
            kind: self.kind,
            extra: self.rest.len(),
        })
    }
}

/// Appends fields to a message's body.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    body: Vec<u8>,
}

impl Writer {
    pub(crate) fn raw(&mut self, bytes: &[u8]) -> &mut Self {
        self.body.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(&mut self, value: u8) -> &mut Self {
        self.raw(&[value])
    }

    pub(crate) fn u16(&mut self, value: u16) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u32(&mut self, value: u32) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn u64(&mut self, value: u64) -> &mut Self {
        self.raw(&value.to_le_bytes())
    }

    pub(crate) fn bool(&mut self, value: bool) -> &mut Self {
        self.u8(value.into())
    }

    /// A length above `u32::MAX` is written saturated; such a body is far
    /// beyond `MAX_MESSAGE` and is refused as a whole before it is sent.
    pub(crate) fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.count(value.len()).raw(value)
    }

    pub(crate) fn count(&mut self, value: usize) -> &mut Self {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX))
    }

    pub(crate) fn option<T>(
        &mut self,
        value: Option<T>,
        write: impl FnOnce(&mut Self, T) -> &mut Self,
    ) -> &mut Self {
        self.bool(value.is_some());
        if let Some(value) = value {
            write(self, value);
        }
        self
    }

    pub(crate) fn into_body(self) -> Vec<u8> {
        self.body
    }
}
