//! docs/api.yaml against the router, both ways: what is documented is accepted,
//! and what is accepted is documented.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::controller::tests::Pretended;
use super::http::HttpRequest;
use super::router::{ROUTES, route};
use super::*;
use crate::logger::Logger;

/// The document with all references to its schemas resolved.
fn document() -> Value {
    let text = include_str!("../../../docs/api.yaml");
    let document: Value = serde_norway::from_str(text).expect("docs/api.yaml is YAML");
    resolved(&document, &document)
}

fn resolved(part: &Value, document: &Value) -> Value {
    match part {
        Value::Object(map) => {
            if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                let target = document.pointer(target.trim_start_matches('#'));
                return resolved(target.expect("a reference leads somewhere"), document);
            }
            map.iter()
                .map(|(key, value)| (key.clone(), resolved(value, document)))
                .collect()
        }
        Value::Array(items) => items.iter().map(|item| resolved(item, document)).collect(),
        other => other.clone(),
    }
}

/// Path and method of each documented operation, with its own part.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut found = Vec::new();
    for (path, methods) in document["paths"].as_object().expect("paths") {
        for (method, operation) in methods.as_object().expect("methods") {
            if method != "parameters" {
                found.push((path.clone(), method.to_uppercase(), operation));
            }
        }
    }
    found
}

fn body_schema(operation: &Value) -> Option<&Value> {
    operation.pointer("/requestBody/content/application~1json/schema")
}

fn names(value: &Value) -> BTreeSet<String> {
    match value {
        Value::Object(map) => map.keys().cloned().collect(),
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().expect("a name").to_owned())
            .collect(),
        _ => BTreeSet::new(),
    }
}

/// An example for a property; an object without one is made of its own.
fn example(schema: &Value) -> Value {
    let example = &schema["example"];
    assert!(!example.is_null(), "each property has an example: {schema}");
    example.clone()
}

/// A body of the required properties.
fn least_body(schema: &Value) -> Map<String, Value> {
    let property = |name: String| (name.clone(), example(&schema["properties"][&name]));
    names(&schema["required"])
        .into_iter()
        .map(property)
        .collect()
}

fn send(path: &str, method: &str, body: &Map<String, Value>) -> Result<Request, String> {
    let id = body
        .get("drive_id")
        .and_then(Value::as_str)
        .unwrap_or("rootfs");
    route(&HttpRequest {
        method: method.to_owned(),
        target: path.replace("{drive_id}", id),
        body: Value::Object(body.clone()).to_string().into_bytes(),
        keep_alive: true,
    })
}

/// The names that an error text of serde lists between backquotes after
/// "expected".
fn listed(text: &str) -> BTreeSet<String> {
    let (_, list) = text
        .rsplit_once("expected")
        .expect("it says what was expected");
    list.split('`')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

#[test]
fn routes_are_the_same() {
    let document = document();
    let documented: BTreeSet<(String, String)> = operations(&document)
        .into_iter()
        .map(|(path, method, _)| (path, method))
        .collect();
    let served = ROUTES.iter().flat_map(|(path, methods)| {
        methods
            .iter()
            .map(|method| ((*path).to_owned(), (*method).to_owned()))
    });
    assert_eq!(documented, served.collect());
}

#[test]
fn bodies_are_the_same() {
    let document = document();
    for (path, method, operation) in operations(&document) {
        let Some(schema) = body_schema(operation) else {
            assert_eq!(method, "GET", "{path}");
            continue;
        };
        let what = format!("{method} {path}");
        let least = least_body(schema);
        send(&path, &method, &least).unwrap_or_else(|text| panic!("{what}: {text}"));
        for name in least.keys() {
            let mut body = least.clone();
            body.remove(name);
            let text = send(&path, &method, &body).expect_err(&what);
            assert!(
                text.contains(&format!("missing field `{name}`")),
                "{what} {name}: {text}"
            );
        }

        let mut body = least.clone();
        body.insert("nonsense".to_owned(), json!(1));
        let accepted = listed(&send(&path, &method, &body).expect_err(&what));
        assert_eq!(accepted, names(&schema["properties"]), "{what}");

        for (name, property) in schema["properties"].as_object().expect("properties") {
            let what = format!("{what} {name}");
            let mut with = |value: Value| {
                body = least.clone();
                body.insert(name.clone(), value);
                send(&path, &method, &body)
            };
            with(example(property)).unwrap_or_else(|text| panic!("{what}: {text}"));
            let null = with(Value::Null);
            let documented = property["nullable"] == true;
            assert_eq!(null.is_ok(), documented, "{what}: {null:?}");

            for value in property["enum"].as_array().into_iter().flatten() {
                with(value.clone()).unwrap_or_else(|text| panic!("{what}: {text}"));
            }
            if property.get("enum").is_some() && name != "level" {
                let accepted = listed(&with(json!("nonsense")).expect_err(&what));
                assert_eq!(accepted, names(&property["enum"]), "{what}");
            }
        }
    }
}

#[test]
fn nested_objects_are_the_same() {
    let document = document();
    for (outer, field, schema) in [
        ("Entropy", "rate_limiter", "RateLimiter"),
        ("Serial", "rate_limiter", "TokenBucket"),
        ("drives/rootfs", "stack", "DriveStack"),
    ] {
        let path = format!("/{}", outer.to_lowercase());
        let body = json!({ field: { "nonsense": 1 } });
        let text = send(&path, "PUT", body.as_object().expect("object")).expect_err(outer);
        let documented = &document["components"]["schemas"][schema]["properties"];
        assert_eq!(listed(&text), names(documented), "{schema}: {text}");
    }
}

#[test]
fn answers_are_as_documented() {
    let document = document();
    let logger = Box::leak(Box::new(Logger::new("test")));
    let mut controller: Controller<Pretended> = Controller::new("test", logger);
    let mut events = crate::machine::Events::new().expect("an epoll descriptor");
    for (path, method, operation) in operations(&document) {
        if method != "GET" {
            continue;
        }
        let request = send_get(&path);
        let Some(Answer::Json(json)) = controller.handle(request, &mut events) else {
            panic!("{path} is always answered");
        };
        let answer: Value = serde_json::from_str(&json).expect("is JSON");
        let schema = operation.pointer("/responses/200/content/application~1json/schema");
        let schema = schema.expect("an answer is documented");
        let (sent, documented) = (names(&answer), names(&schema["properties"]));
        assert!(sent.is_subset(&documented), "{path}: {sent:?}");
        assert!(
            names(&schema["required"]).is_subset(&sent),
            "{path}: {sent:?}"
        );
    }
}

fn send_get(path: &str) -> Request {
    let request = HttpRequest {
        method: "GET".to_owned(),
        target: path.to_owned(),
        body: Vec::new(),
        keep_alive: true,
    };
    route(&request).expect("is a route")
}
