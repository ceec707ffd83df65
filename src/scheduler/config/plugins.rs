//! The plugins of a profile: upstream's default ones with the changes of the file (`mergePlugins`,
//! `expandMultiPointPlugins`).

use api::field::{Error, Path};
use component_config::strict_config::Reader;
use serde_json::{Map, Value};

use crate::framework::Registration;
use crate::plugins::PLUGINS;
use crate::profile::Profile;

/// The extension points at which the scheduler's own plugins have a part, and the points that it
/// runs together with each: a plugin is enabled for all of them or for none.
const PRE_ENQUEUE: &str = "preEnqueue";
const FILTER: &str = "filter";
const POST_FILTER: &str = "postFilter";
const SCORE: &str = "score";
const TOGETHER: &[(&str, &[&str])] = &[
    (PRE_ENQUEUE, &[]),
    (FILTER, &["preFilter", "reserve", "preBind"]),
    (POST_FILTER, &[]),
    (SCORE, &["preScore"]),
];
const MULTI_POINT: &str = "multiPoint";
/// Points of which the plugin is part of the scheduler itself.
const BUILT_IN: &[(&str, &str)] = &[("queueSort", "PrioritySort"), ("bind", "DefaultBinder")];
/// Points at which no plugin of the scheduler has a part.
const WITHOUT_PLUGINS: &[&str] =
    &["permit", "postBind", "podGroupPostFilter", "placementGenerate", "placementScore"];

/// The points at which each plugin has a part.
const POINTS: &[(&str, &[&str])] = &[
    ("SchedulingGates", &[PRE_ENQUEUE]),
    ("PrioritySort", &["queueSort"]),
    ("NodeName", &["preFilter", FILTER]),
    ("NodeUnschedulable", &["preFilter", FILTER]),
    ("TaintToleration", &["preFilter", FILTER, "preScore", SCORE]),
    ("NodeAffinity", &["preFilter", FILTER, "preScore", SCORE]),
    ("NodePorts", &["preFilter", FILTER]),
    ("NodeResourcesFit", &["preFilter", FILTER, "preScore", SCORE]),
    ("VolumeRestrictions", &["preFilter", FILTER]),
    ("NodeVolumeLimits", &["preFilter", FILTER]),
    ("VolumeBinding", &["preFilter", FILTER, "reserve", "preBind", "preScore", SCORE]),
    ("VolumeZone", &["preFilter", FILTER]),
    ("PodTopologySpread", &["preFilter", FILTER, "preScore", SCORE]),
    ("InterPodAffinity", &["preFilter", FILTER, "preScore", SCORE]),
    (
        "DynamicResources",
        &[PRE_ENQUEUE, "preFilter", FILTER, POST_FILTER, "reserve", "preBind", SCORE],
    ),
    ("DefaultPreemption", &[PRE_ENQUEUE, POST_FILTER]),
    ("NodeResourcesBalancedAllocation", &["preScore", SCORE]),
    ("ImageLocality", &[SCORE]),
    ("DefaultBinder", &["bind"]),
    ("NodeDeclaredFeatures", &["preFilter", FILTER]),
];

/// A plugin with the weight of its scores, if one is given.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EnabledPlugin {
    name: String,
    weight: Option<i64>,
}

/// The plugins that the file enables and disables at one point.
#[derive(Debug, Default)]
struct PluginSet {
    enabled: Vec<EnabledPlugin>,
    disabled: Vec<String>,
}

impl PluginSet {
    fn disables(&self, name: &str) -> bool {
        self.disabled.iter().any(|disabled| disabled == "*" || disabled == name)
    }
}

fn points_of(name: &str) -> Option<&'static [&'static str]> {
    POINTS.iter().find(|(known, _)| *known == name).map(|(_, points)| *points)
}

fn registration(name: &str) -> Option<&'static Registration> {
    PLUGINS.iter().find(|plugin| plugin.name == name)
}

/// The plugins of a profile.
pub(super) fn read(reader: &mut Reader, profile: &Map<String, Value>, path: &Path) -> Profile {
    let Some((path, map)) = reader.object(profile, "plugins", path) else {
        return Profile::default();
    };
    let together = TOGETHER
        .iter()
        .flat_map(|(point, others)| [*point].into_iter().chain(others.iter().copied()));
    let built_in = BUILT_IN.iter().map(|(point, _)| *point);
    let known: Vec<&str> = [MULTI_POINT]
        .into_iter()
        .chain(together)
        .chain(built_in)
        .chain(WITHOUT_PLUGINS.iter().copied())
        .collect();
    reader.known(map, &path.to_string(), &known);
    let mut sets: Vec<(&str, PluginSet)> = Vec::new();
    for point in known {
        let set = plugin_set(reader, map, point, &path);
        check_built_in(reader, point, &set, &path);
        sets.push((point, set));
    }
    let empty = PluginSet::default();
    let set = |point: &str| sets.iter().find(|(p, _)| *p == point).map_or(&empty, |(_, set)| set);
    let multi_point = merged_multi_point(set(MULTI_POINT));
    for (built_in_point, name) in BUILT_IN {
        if !multi_point.iter().any(|plugin| plugin.name == *name) {
            let at = path.child(built_in_point);
            let why = format!("kube-lite needs the plugin {name} here; do not disable it");
            reader.errors.push(Error::forbidden(&at, why));
        }
    }
    let mut expanded = |point: &'static str| {
        let plugins = expand(&multi_point, point, set(point));
        for other in TOGETHER.iter().filter(|(p, _)| *p == point).flat_map(|(_, others)| *others) {
            check_together(
                reader,
                &path,
                (point, &plugins),
                (other, &expand(&multi_point, other, set(other))),
            );
        }
        plugins
    };
    let plugins = |list: Vec<EnabledPlugin>| -> Vec<&'static Registration> {
        list.iter().filter_map(|plugin| registration(&plugin.name)).collect()
    };
    let scores = expanded(SCORE)
        .iter()
        .filter_map(|plugin| Some((registration(&plugin.name)?, plugin.weight.unwrap_or(1))))
        .collect();
    Profile {
        pre_enqueue: plugins(expanded(PRE_ENQUEUE)),
        filters: plugins(expanded(FILTER)),
        post_filters: plugins(expanded(POST_FILTER)),
        scores,
        ..Profile::default()
    }
}

fn plugin_set(
    reader: &mut Reader,
    map: &Map<String, Value>,
    point: &str,
    parent: &Path,
) -> PluginSet {
    let Some((path, map)) = reader.object(map, point, parent) else {
        return PluginSet::default();
    };
    reader.known(map, &path.to_string(), &["enabled", "disabled"]);
    let mut set = PluginSet::default();
    for (at, plugin) in reader.objects(map, "enabled", &path) {
        reader.known(plugin, &at.to_string(), &["name", "weight"]);
        let name = reader.text(plugin, "name", &at);
        let weight = super::integer(reader, plugin, "weight", &at).filter(|weight| *weight != 0);
        match points_of(&name) {
            None => reader.errors.push(Error::not_found(&at.child("name"), name.as_str())),
            Some(points) if point != MULTI_POINT && !points.contains(&point) => {
                let why = format!("plugin {name:?} does not extend {point}");
                reader.errors.push(Error::invalid(&at.child("name"), name.as_str(), why));
            }
            Some(_) if set.enabled.iter().any(|other| other.name == name) => {
                reader.errors.push(Error::duplicate(&at.child("name"), name.as_str()));
            }
            Some(_) => set.enabled.push(EnabledPlugin { name, weight }),
        }
    }
    for (at, plugin) in reader.objects(map, "disabled", &path) {
        reader.known(plugin, &at.to_string(), &["name", "weight"]);
        set.disabled.push(reader.text(plugin, "name", &at));
    }
    set
}

/// Rejects a set that takes the plugin of a built-in point away.
fn check_built_in(reader: &mut Reader, point: &str, set: &PluginSet, path: &Path) {
    let built_in = BUILT_IN.iter().find(|(p, _)| *p == point).map(|(_, name)| *name);
    let Some(name) = built_in else { return };
    let is_kept = !set.disables(name) || set.enabled.iter().any(|plugin| plugin.name == name);
    if !is_kept {
        let why = format!("kube-lite needs the plugin {name} here; do not disable it");
        reader.errors.push(Error::forbidden(&path.child(point), why));
    }
}

/// The plugins of `multiPoint`: the default ones with the changes of the file.
fn merged_multi_point(custom: &PluginSet) -> Vec<EnabledPlugin> {
    let default_weight = |name: &str| registration(name).map(|p| p.weight).filter(|w| *w > 0);
    let mut plugins: Vec<EnabledPlugin> = POINTS
        .iter()
        .filter(|(name, _)| !custom.disables(name))
        .map(|(name, _)| {
            let own = custom.enabled.iter().find(|plugin| plugin.name == *name);
            let default = EnabledPlugin { name: (*name).into(), weight: default_weight(name) };
            own.cloned().unwrap_or(default)
        })
        .collect();
    for plugin in &custom.enabled {
        if !plugins.iter().any(|other| other.name == plugin.name) {
            plugins.push(plugin.clone());
        }
    }
    plugins
}

/// The plugins of one point: those that it names and that `multiPoint` has, the others of
/// `multiPoint`, the others that it names.
fn expand(multi_point: &[EnabledPlugin], point: &str, own: &PluginSet) -> Vec<EnabledPlugin> {
    let has_part = |plugin: &&EnabledPlugin| {
        points_of(&plugin.name).is_some_and(|points| points.contains(&point))
    };
    let multi_point: Vec<&EnabledPlugin> =
        multi_point.iter().filter(has_part).filter(|plugin| !own.disables(&plugin.name)).collect();
    let is_own = |name: &str| own.enabled.iter().any(|plugin| plugin.name == name);
    let is_default = |name: &str| multi_point.iter().any(|plugin| plugin.name == name);
    let overriding = own.enabled.iter().filter(|plugin| is_default(&plugin.name));
    let others = own.enabled.iter().filter(|plugin| !is_default(&plugin.name));
    let inherited = multi_point.iter().copied().filter(|plugin| !is_own(&plugin.name));
    overriding.chain(inherited).chain(others).cloned().collect()
}

/// Rejects a plugin that is enabled for one of two points that run together and not for the other.
fn check_together(
    reader: &mut Reader,
    path: &Path,
    (point, enabled): (&str, &[EnabledPlugin]),
    (other, also): (&str, &[EnabledPlugin]),
) {
    for (name, points) in POINTS {
        let has = |list: &[EnabledPlugin]| list.iter().any(|plugin| plugin.name == *name);
        if points.contains(&point) && points.contains(&other) && has(enabled) != has(also) {
            let why = format!(
                "kube-lite runs {other} of {name} together with its {point}; enable or disable both"
            );
            reader.errors.push(Error::forbidden(&path.child(other), why));
        }
    }
}
