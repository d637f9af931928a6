//! Reads of a configuration space that is a row of bytes.

/// Copies what `space` has at `offset` to `out`; the rest of `out` is left alone.
pub fn read_config_space(space: &[u8], offset: u64, out: &mut [u8]) {
    let rest = usize::try_from(offset)
        .ok()
        .and_then(|offset| space.get(offset..))
        .unwrap_or_default();
    for (out, &byte) in out.iter_mut().zip(rest) {
        *out = byte;
    }
}

#[cfg(test)]
mod tests {
    use super::read_config_space;

    #[test]
    fn reads_end_with_the_space() {
        let read = |offset| {
            let mut out = [9; 3];
            read_config_space(&[1, 2, 3, 4], offset, &mut out);
            out
        };
        assert_eq!(read(0), [1, 2, 3]);
        assert_eq!(read(3), [4, 9, 9]);
        for past in [4, 5, u64::MAX] {
            assert_eq!(read(past), [9; 3]);
        }
    }
}
