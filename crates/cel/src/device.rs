//! Expressions that select devices of ResourceSlices: `device.driver`, `device.allowMultipleAllocations`, and
//! attributes and capacities by domain and name, `device.attributes["gpu.example.com"].model`. The API server compiles
//! the expressions on create and update, and the scheduler evaluates them.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use machinery::json;

use crate::{
    Checked, Decl, DeclKind, Env, Field, Library, Program, Type, compile,
    cost::estimate::estimate,
    functions::{amount::Amount, semver::Semver},
    value::{Error, Map, OwnedMap, Result, Text, Value},
};

/// The maximum cost of a selector, for the estimate and for the evaluation.
pub const DEVICE_COST_LIMIT: u64 = 1_000_000;

/// The maximum number of attributes and capacities of a device together.
const PROPERTIES_MAX: u64 = 32;
const DOMAIN_LENGTH_MAX: u64 = 63;
const NAME_LENGTH_MAX: u64 = 32;
const DRIVER_LENGTH_MAX: u64 = 63;
const VALUE_LENGTH_MAX: u64 = 64;

/// A compiled selector.
#[derive(Debug)]
pub struct DeviceSelector {
    program: Program,
    max_cost: u64,
}

/// Why an expression is not a valid selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SelectorError {
    /// The expression does not compile, or does not return a bool.
    Invalid(String),
    /// The program of the compiled expression could not be created.
    Internal(String),
}

/// A device as the value of `device`: converted once, matched with any number of selectors.
#[derive(Debug, Clone)]
pub struct Device<'a>(Value<'a>);

static ENVIRONMENT: LazyLock<Env> = LazyLock::new(|| {
    Env::new()
        .with_bindings()
        .declared("device", Arc::new(declaration()))
});

impl DeviceSelector {
    pub fn compile(text: &str) -> Result<Self, SelectorError> {
        let checked = compile(&ENVIRONMENT, text)
            .map_err(|issues| SelectorError::Invalid(format!("compilation failed: {issues}")))?;
        check_output(&checked)?;
        let program = Program::new(&ENVIRONMENT, &checked).map_err(|error| {
            SelectorError::Internal(format!("program instantiation failed: {error}"))
        })?;
        let max_cost = estimate(&ENVIRONMENT, &checked).max;
        Ok(Self { program, max_cost })
    }

    /// The estimated maximum cost of an evaluation, for any device.
    pub fn max_cost(&self) -> u64 {
        self.max_cost
    }

    /// Whether the selector matches the device.
    pub fn matches(&self, device: &Device<'_>) -> Result<bool> {
        let evaluation = self
            .program
            .evaluate(std::slice::from_ref(&device.0), DEVICE_COST_LIMIT);
        match evaluation.result? {
            Value::Bool(selected) => Ok(selected),
            other => Err(Error::new(format!(
                "CEL result of type {} could not be converted to bool",
                other.type_of().runtime_name()
            ))),
        }
    }
}

/// A selector must return a bool, or an attribute, whose type is known only at evaluation.
fn check_output(checked: &Checked) -> Result<(), SelectorError> {
    match checked.output() {
        Type::Bool | Type::Any => Ok(()),
        other => Err(SelectorError::Invalid(format!(
            "must evaluate to bool or the unknown type, not {}",
            other.declared_name()
        ))),
    }
}

impl<'a> Device<'a> {
    /// A device of a ResourceSlice, as JSON. Names without a domain are in the domain of the driver.
    pub fn new(driver: &'a str, device: &'a json::Value) -> Result<Self> {
        let mut value = OwnedMap::default();
        let shared = device["allowMultipleAllocations"] == true;
        let mut insert = |name: &'static str, field: Value<'a>| {
            value.insert(Value::String(Text::Borrowed(name)), field)
        };
        insert("driver", Value::String(Text::Borrowed(driver)))?;
        insert("allowMultipleAllocations", Value::Bool(shared))?;
        let attributes = by_domain(driver, &device["attributes"], attribute)?;
        insert("attributes", attributes)?;
        insert(
            "capacity",
            by_domain(driver, &device["capacity"], capacity)?,
        )?;
        Ok(Self(Value::Map(Map::Owned(Arc::new(value)))))
    }
}

/// Maps of properties by domain. The map of an unknown domain is empty.
fn by_domain<'a>(
    driver: &'a str,
    properties: &'a json::Value,
    read: fn(&'a str, &'a json::Value) -> Result<Value<'a>>,
) -> Result<Value<'a>> {
    let mut domains: BTreeMap<&str, OwnedMap<'a>> = BTreeMap::new();
    for (name, property) in properties.as_object().into_iter().flatten() {
        let (domain, id) = name
            .as_str()
            .split_once('/')
            .unwrap_or((driver, name.as_str()));
        let value = read(name.as_str(), property)?;
        let properties = domains.entry(domain).or_default();
        properties.insert(Value::String(Text::Borrowed(id)), value)?;
    }
    let mut all = OwnedMap::default();
    let map = |map: OwnedMap<'a>| Value::Map(Map::Owned(Arc::new(map)));
    for (domain, properties) in domains {
        all.insert(Value::String(Text::Borrowed(domain)), map(properties))?;
    }
    Ok(map(all.otherwise(map(OwnedMap::default()))))
}

fn attribute<'a>(name: &'a str, value: &'a json::Value) -> Result<Value<'a>> {
    if let Some(number) = value["int"].as_i64() {
        Ok(Value::Int(number))
    } else if let Some(truth) = value["bool"].as_bool() {
        Ok(Value::Bool(truth))
    } else if let Some(text) = value["string"].as_str() {
        Ok(Value::String(Text::Borrowed(text)))
    } else if let Some(version) = value["version"].as_str() {
        let version = Semver::read(version, false).map_err(|why| {
            Error::new(format!("attribute {name}: parse semantic version: {why}"))
        })?;
        Ok(Value::Library(Library::Semver(Arc::new(version))))
    } else {
        let why = format!("attribute {name}: unsupported attribute value");
        Err(Error::new(why))
    }
}

fn capacity<'a>(name: &'a str, value: &'a json::Value) -> Result<Value<'a>> {
    let quantity = Amount::parse(value["value"].as_str().unwrap_or_default())
        .map_err(|why| Error::new(format!("capacity {name}: {why}")))?;
    Ok(Value::Library(Library::Quantity(Arc::new(quantity))))
}

fn declaration() -> Decl {
    let properties = |value: Decl| {
        let map = |value: Decl, longest_key| {
            let value = Arc::new(value);
            Decl::new(DeclKind::Map { value, longest_key }, PROPERTIES_MAX)
        };
        map(map(value, NAME_LENGTH_MAX), DOMAIN_LENGTH_MAX)
    };
    let quantity = DeclKind::Plain(Type::Struct("kubernetes.Quantity".into()));
    let attribute = DeclKind::Plain(Type::Any);
    let fields = [
        ("driver", Decl::new(DeclKind::String, DRIVER_LENGTH_MAX)),
        ("allowMultipleAllocations", Decl::new(DeclKind::Bool, 1)),
        (
            "attributes",
            properties(Decl::new(attribute, VALUE_LENGTH_MAX)),
        ),
        ("capacity", properties(Decl::new(quantity, u64::MAX))),
    ];
    let fields = fields.map(|(name, decl)| {
        let (json, decl) = (Arc::from(name), Arc::new(decl));
        (Arc::from(name), Field { json, decl })
    });
    let kind = DeclKind::Object {
        name: "kubernetes.DRADevice".into(),
        fields: fields.into(),
    };
    Decl::new(kind, u64::MAX)
}
