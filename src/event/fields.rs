//! The fields of an event.
//!
//! `serde_json::json!` would bring the code for every field to every event: 1 KB each.

use serde_json::{Map, Value};

/// Fields by name.
#[derive(Debug, Default)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Adds a field.
    #[inline(never)]
    pub fn put(&mut self, name: &str, value: Value) {
        self.0.insert(name.to_owned(), value);
    }

    /// Adds a text.
    #[inline(never)]
    pub fn text(&mut self, name: &str, text: &str) {
        self.put(name, Value::String(text.to_owned()));
    }
}

impl From<Fields> for Value {
    fn from(fields: Fields) -> Value {
        Value::Object(fields.0)
    }
}

/// An object of values that are, or become, a `Value`.
macro_rules! fields {
    ($($name:literal: $value:expr),* $(,)?) => {{
        let mut fields = $crate::event::fields::Fields::default();
        $(fields.put($name, ::serde_json::Value::from($value));)*
        ::serde_json::Value::from(fields)
    }};
}
pub(crate) use fields;

/// One frame of a call stack: whoever reads it looks up the names.
#[inline(never)]
pub fn frame(module: Option<String>, offset: u64) -> Value {
    fields! {
        "module": module, "offset": offset, "function": Value::Null, "file": Value::Null, "line": Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn they_are_what_json_would_be() {
        let path = std::path::Path::new("/x");
        let made = fields! {
            "number": 7u64, "small": -3i32, "text": "a", "owned": path.display().to_string(), "none": None::<u32>,
            "some": Some("b"), "list": vec![fields! { "x": true }],
        };
        assert_eq!(
            made,
            json!({
                "number": 7, "small": -3, "text": "a", "owned": "/x", "none": null, "some": "b", "list": [{ "x": true }],
            })
        );
    }
}
