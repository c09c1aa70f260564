//! Numbers and runs of bytes from a fuzzer's input. At its end there are zeros.

pub struct Take<'a>(pub &'a [u8]);

impl<'a> Take<'a> {
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, width: usize) -> u64 {
        let mut word = [0; 8];
        let taken = self.bytes(width);
        word[..taken.len()].copy_from_slice(taken);
        u64::from_le_bytes(word)
    }

    pub fn u8(&mut self) -> u8 {
        self.number(1) as u8
    }

    pub fn u16(&mut self) -> u16 {
        self.number(2) as u16
    }

    pub fn u32(&mut self) -> u32 {
        self.number(4) as u32
    }

    pub fn u64(&mut self) -> u64 {
        self.number(8)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
