//! The settings tree as data: which keys there are, of which type, with which meaning.
//!
//! Read from the JSON schema that `schemars` derives from the types, so that the check for unknown keys, the typing of
//! environment values and the reference page all follow the one declaration in `tree.rs`.

use serde_json::Value;

/// Type of one value.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    Table(Vec<Field>),
    Array(Box<Shape>),
    Text,
    /// Text that is never printed.
    Secret,
    Integer,
    Number,
    Flag,
    /// One of these words.
    Choice(Vec<Word>),
}

/// One word of a [`Shape::Choice`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    pub name: String,
    pub doc: String,
}

/// One key of a [`Shape::Table`].
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    pub name: String,
    /// Doc comment of the field, or of its type where the field has none; one line.
    pub doc: String,
    /// Must stand in a table that is given at all.
    pub required: bool,
    /// May be left out and then means "off" or "find out".
    pub optional: bool,
    pub shape: Shape,
}

impl Shape {
    /// The shape of the whole tree.
    #[must_use]
    pub fn of_settings() -> Shape {
        let schema = crate::json_schema();
        read(&schema, &schema)
    }

    /// What a value of this shape looks like, for error texts and the reference.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Shape::Table(_) => "table".into(),
            Shape::Array(of) => match **of {
                Shape::Table(_) => "array of tables".into(),
                ref of => format!("array of {}s", of.describe()),
            },
            Shape::Text => "string".into(),
            Shape::Secret => "string (secret)".into(),
            Shape::Integer => "whole number".into(),
            Shape::Number => "number".into(),
            Shape::Flag => "true or false".into(),
            Shape::Choice(words) => {
                let words: Vec<_> = words.iter().map(|word| format!("\"{}\"", word.name)).collect();
                format!("one of {}", words.join(", "))
            }
        }
    }

    /// [`Self::describe`] as it follows "must be" in a sentence.
    pub(crate) fn expected(&self) -> String {
        let article = match self {
            Shape::Flag | Shape::Choice(_) => "",
            Shape::Array(_) => "an ",
            _ => "a ",
        };
        format!("{article}{}", self.describe())
    }

    /// Fields of a table; empty for anything else.
    #[must_use]
    pub fn fields(&self) -> &[Field] {
        match self {
            Shape::Table(fields) => fields,
            _ => &[],
        }
    }

    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        self.fields().iter().find(|field| field.name == name)
    }
}

fn read(schema: &Value, root: &Value) -> Shape {
    if let Some(name) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/$defs/")) {
        return if name == "Secret" { Shape::Secret } else { read(&root["$defs"][name], root) };
    }
    if let Some(some) = some_of_option(schema) {
        return read(some, root);
    }
    if let Some(words) = words(schema) {
        return Shape::Choice(words);
    }
    match type_name(schema) {
        "object" => Shape::Table(fields(schema, root)),
        "array" => Shape::Array(Box::new(read(&schema["items"], root))),
        "integer" => Shape::Integer,
        "number" => Shape::Number,
        "boolean" => Shape::Flag,
        _ => Shape::Text,
    }
}

fn fields(schema: &Value, root: &Value) -> Vec<Field> {
    let Some(properties) = schema["properties"].as_object() else { return Vec::new() };
    let required: Vec<_> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    properties
        .iter()
        .map(|(name, schema)| Field {
            name: name.clone(),
            doc: doc(schema, root),
            required: required.contains(&name.as_str()),
            optional: is_option(schema),
            shape: read(schema, root),
        })
        .collect()
}

/// The field's own words first, the type's where it has none.
fn doc(schema: &Value, root: &Value) -> String {
    if let Some(text) = schema["description"].as_str() {
        return one_line(text);
    }
    let named = schema["$ref"].as_str().or_else(|| some_of_option(schema).and_then(|some| some["$ref"].as_str()));
    match named.and_then(|path| path.strip_prefix("#/$defs/")) {
        Some(name) => one_line(root["$defs"][name]["description"].as_str().unwrap_or_default()),
        None => String::new(),
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn type_name(schema: &Value) -> &str {
    match &schema["type"] {
        Value::Array(types) => types.iter().filter_map(Value::as_str).find(|name| *name != "null").unwrap_or_default(),
        name => name.as_str().unwrap_or_default(),
    }
}

fn is_option(schema: &Value) -> bool {
    some_of_option(schema).is_some()
        || schema["type"].as_array().is_some_and(|types| types.iter().any(|name| name == "null"))
}

/// `Option` of a named type comes as `anyOf: [it, null]`.
fn some_of_option(schema: &Value) -> Option<&Value> {
    let choices = schema["anyOf"].as_array()?;
    choices.iter().any(|choice| choice["type"] == "null").then_some(())?;
    choices.iter().find(|choice| choice["type"] != "null")
}

/// Enumerations come as `enum: [..]`, as `oneOf: [{const, description}]`, or as a mixture.
fn words(schema: &Value) -> Option<Vec<Word>> {
    let plain = |schema: &Value| -> Vec<Word> {
        let names =
            schema["enum"].as_array().into_iter().flatten().chain(schema.get("const")).filter_map(Value::as_str);
        let doc = one_line(schema["description"].as_str().unwrap_or_default());
        names.map(|name| Word { name: name.into(), doc: doc.clone() }).collect()
    };
    let words: Vec<Word> = match schema["oneOf"].as_array() {
        Some(variants) => variants.iter().flat_map(plain).collect(),
        None => schema["enum"].as_array()?.iter().filter_map(Value::as_str).map(undocumented).collect(),
    };
    (!words.is_empty()).then_some(words)
}

fn undocumented(name: &str) -> Word {
    Word { name: name.into(), doc: String::new() }
}
