//! The packet header: bytes to fields and back, nothing else
//! (virtio 1.2 §5.10.6).

/// Bytes of a packet header.
pub const HEADER_LEN: usize = 44;

/// The context identifier of the host (virtio 1.2 §5.10.4).
pub const HOST_CID: u64 = 2;

/// The only socket type that this device serves, `VIRTIO_VSOCK_TYPE_STREAM`.
pub const TYPE_STREAM: u16 = 1;

/// Flag of [`Op::Shutdown`]: the sender receives no more.
pub const SHUTDOWN_RECEIVE: u32 = 1 << 0;
/// Flag of [`Op::Shutdown`]: the sender sends no more.
pub const SHUTDOWN_SEND: u32 = 1 << 1;
/// Both directions have ended.
pub const SHUTDOWN_BOTH: u32 = SHUTDOWN_RECEIVE | SHUTDOWN_SEND;

/// What a packet is for (`enum virtio_vsock_op`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Op {
    /// Asks for a connection.
    Request = 1,
    /// Accepts one.
    Response = 2,
    /// There is no such connection, or not any more.
    Reset = 3,
    /// The sender ends one or both directions.
    Shutdown = 4,
    /// Payload.
    Data = 5,
    /// Nothing but the credit fields.
    CreditUpdate = 6,
    /// Asks for the credit fields.
    CreditRequest = 7,
}

impl Op {
    /// The operation that a header's `op` field names.
    pub fn from_wire(op: u16) -> Option<Self> {
        Some(match op {
            1 => Self::Request,
            2 => Self::Response,
            3 => Self::Reset,
            4 => Self::Shutdown,
            5 => Self::Data,
            6 => Self::CreditUpdate,
            7 => Self::CreditRequest,
            _ => return None,
        })
    }
}

/// `struct virtio_vsock_hdr`, field by field. Any bytes are a header: what a
/// field means is checked by who uses it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Context identifier of the sender.
    pub src_cid: u64,
    /// Context identifier of the receiver.
    pub dst_cid: u64,
    /// Port of the sender.
    pub src_port: u32,
    /// Port of the receiver.
    pub dst_port: u32,
    /// Bytes of payload that follow the header.
    pub len: u32,
    /// Socket type.
    pub kind: u16,
    /// Operation; see [`Op`].
    pub op: u16,
    /// Flags of the operation.
    pub flags: u32,
    /// The sender's whole buffer for this connection, in bytes.
    pub buf_alloc: u32,
    /// Bytes that the sender has ever taken out of that buffer, wrapping.
    pub fwd_cnt: u32,
}

impl Header {
    /// Reads a header as it stands in guest memory.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Self {
        let mut fields = Fields(bytes);
        Self {
            src_cid: u64::from_le_bytes(fields.next()),
            dst_cid: u64::from_le_bytes(fields.next()),
            src_port: u32::from_le_bytes(fields.next()),
            dst_port: u32::from_le_bytes(fields.next()),
            len: u32::from_le_bytes(fields.next()),
            kind: u16::from_le_bytes(fields.next()),
            op: u16::from_le_bytes(fields.next()),
            flags: u32::from_le_bytes(fields.next()),
            buf_alloc: u32::from_le_bytes(fields.next()),
            fwd_cnt: u32::from_le_bytes(fields.next()),
        }
    }

    /// The header as it stands in guest memory.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..8].copy_from_slice(&self.src_cid.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.dst_cid.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.src_port.to_le_bytes());
        bytes[20..24].copy_from_slice(&self.dst_port.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.len.to_le_bytes());
        bytes[28..30].copy_from_slice(&self.kind.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.op.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.flags.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.buf_alloc.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.fwd_cnt.to_le_bytes());
        bytes
    }
}

/// Takes fixed-size fields off the front of a header.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn next<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self
            .0
            .split_first_chunk()
            .expect("the fields add up to HEADER_LEN bytes");
        self.0 = rest;
        *field
    }
}

#[cfg(test)]
#[path = "packet_test.rs"]
mod tests;
