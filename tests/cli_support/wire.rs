//! Reads protocol buffers by their public encoding alone: <https://protobuf.dev/programming-guides/encoding/>.

/// Fields in the order of the bytes.
pub struct Message(Vec<(u32, Value)>);

enum Value {
    Number(u64),
    Bytes(Vec<u8>),
}

impl Message {
    /// Fails the test where the bytes are no message.
    #[track_caller]
    pub fn read(mut bytes: &[u8]) -> Message {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = match tag & 7 {
                0 => Value::Number(varint(&mut bytes)),
                2 => {
                    let length = varint(&mut bytes) as usize;
                    let (value, rest) = bytes.split_at(length);
                    bytes = rest;
                    Value::Bytes(value.to_vec())
                }
                other => panic!("wire type {other} is not used by profiles"),
            };
            fields.push(((tag >> 3) as u32, value));
        }
        Message(fields)
    }

    fn of(&self, field: u32) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |(number, _)| *number == field).map(|(_, value)| value)
    }

    /// A field that is there once or not at all, which means 0.
    pub fn number(&self, field: u32) -> u64 {
        let numbers = self.numbers(field);
        assert!(numbers.len() <= 1, "field {field} is there {} times", numbers.len());
        numbers.first().copied().unwrap_or(0)
    }

    /// A repeated field, packed or not.
    pub fn numbers(&self, field: u32) -> Vec<u64> {
        let mut numbers = Vec::new();
        for value in self.of(field) {
            match value {
                Value::Number(number) => numbers.push(*number),
                Value::Bytes(bytes) => {
                    let mut rest = bytes.as_slice();
                    while !rest.is_empty() {
                        numbers.push(varint(&mut rest));
                    }
                }
            }
        }
        numbers
    }

    pub fn messages(&self, field: u32) -> Vec<Message> {
        self.bytes(field).into_iter().map(|bytes| Message::read(bytes)).collect()
    }

    pub fn texts(&self, field: u32) -> Vec<String> {
        self.bytes(field).into_iter().map(|bytes| String::from_utf8(bytes.to_vec()).unwrap()).collect()
    }

    fn bytes(&self, field: u32) -> Vec<&[u8]> {
        self.of(field)
            .map(|value| match value {
                Value::Bytes(bytes) => bytes.as_slice(),
                Value::Number(_) => panic!("field {field} is a number"),
            })
            .collect()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first().expect("a number is cut short");
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return value;
        }
    }
    panic!("a number has more than 64 bits")
}
