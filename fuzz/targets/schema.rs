//! Schemas of custom resources and values against them: two JSON texts, one after the other, and
//! perhaps an old value.
#![no_main]

use api::custom::{PruneOptions, Structural};
use api::field::Path;
use serde_json::Value;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut values =
        serde_json::Deserializer::from_slice(bytes).into_iter::<Value>().map_while(Result::ok);
    let (Some(source), Some(mut new)) = (values.next(), values.next()) else { return };
    let old = values.next();
    let definition = serde_json::json!({"spec": {"versions": [{"name": "v1", "schema": {"openAPIV3Schema": source}}]}});
    let _ = api::validation::crd::validate(&definition);
    let Ok(schema) = Structural::new(&source) else { return };
    let options = PruneOptions { resource: true, collect: true };
    schema.prune(&mut new, &options);
    schema.default(&mut new);
    let _ = schema.coerce(&mut new, true);
    let _ = schema.validate(&new, old.as_ref(), &Path::default());
    schema.extend(&mut api::schema::Schema::new(), "k", &api::schema::Shape::Any);
});
