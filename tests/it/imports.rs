//! Which source file of a crate imports which other one.
//!
//! A path such as `crate::handlers::output::respond` counts as an import of the file that defines
//! the item: re-exports are followed to their origin, and a `pub use` is itself no import. Test
//! modules are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use quote::ToTokens as _;

/// A module's path inside its crate: `["handlers", "output"]`; the root is empty.
pub(crate) type Module = Vec<String>;

/// One source file of a crate.
#[derive(Default)]
struct Source {
    children: BTreeSet<String>,
    /// Names that `use` brings into scope, with the path that they abbreviate.
    aliases: BTreeMap<String, Vec<String>>,
    /// Modules whose items a glob brings into scope.
    globs: Vec<Vec<String>>,
    defined: BTreeSet<String>,
    /// Paths that the code names, `use` declarations included and re-exports left out.
    paths: Vec<Vec<String>>,
}

/// The source files of one crate and the imports between them.
pub(crate) struct Imports {
    sources: BTreeMap<Module, Source>,
}

impl Imports {
    /// Reads the crate whose root files (`lib.rs`, `main.rs`) lie in `folder`. Folders that hold a
    /// `Cargo.toml` of their own are other crates.
    pub(crate) fn read(folder: &Path) -> Self {
        let mut sources = BTreeMap::new();
        for (module, path) in files(folder) {
            let text = std::fs::read_to_string(&path).unwrap();
            let file = syn::parse_file(&text)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut source = Source::default();
            source.add_items(&file.items);
            sources.insert(module, source);
        }
        Self { sources }
    }

    /// The modules that `module` imports.
    fn targets(&self, module: &Module) -> BTreeSet<Module> {
        let Some(source) = self.sources.get(module) else { return BTreeSet::new() };
        let targets = source.paths.iter().filter_map(|path| self.resolve(module, path, 0));
        targets.filter(|target| target != module).collect()
    }

    /// What makes `from` import `to`: the paths that `from` names.
    pub(crate) fn reasons(&self, from: &Module, to: &Module) -> BTreeSet<String> {
        let paths = self.sources.get(from).into_iter().flat_map(|source| &source.paths);
        let to_target = paths.filter(|path| self.resolve(from, path, 0).as_ref() == Some(to));
        to_target.map(|path| path.join("::")).collect()
    }

    /// Every import, by importer.
    pub(crate) fn edges(&self) -> BTreeMap<Module, BTreeSet<Module>> {
        self.sources.keys().map(|module| (module.clone(), self.targets(module))).collect()
    }

    /// The file that defines what `path` names when it is written in `module`.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        if depth > 16 {
            return None;
        }
        let source = self.sources.get(module)?;
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.descend(&Vec::new(), rest, depth),
            "self" => self.descend(module, rest, depth),
            "super" => {
                let parent = module.split_last().map(|(_, parent)| parent.to_vec())?;
                match rest.first().map(String::as_str) {
                    Some("super") => self.resolve(&parent, rest, depth + 1),
                    _ => self.descend(&parent, rest, depth),
                }
            }
            name if source.children.contains(name) => self.descend(module, path, depth),
            name => {
                let alias = source.aliases.get(name)?;
                let full: Vec<String> = alias.iter().chain(rest).cloned().collect();
                if full.first() == path.first() {
                    return None;
                }
                self.resolve(module, &full, depth + 1)
            }
        }
    }

    /// Follows `path` from `module` downwards and through re-exports.
    fn descend(&self, module: &Module, path: &[String], depth: usize) -> Option<Module> {
        let source = self.sources.get(module)?;
        let Some((name, rest)) = path.split_first() else { return Some(module.clone()) };
        if source.children.contains(name) {
            let mut child = module.clone();
            child.push(name.clone());
            if self.sources.contains_key(&child) {
                return self.descend(&child, rest, depth);
            }
        }
        if !source.defined.contains(name) {
            if let Some(alias) = source.aliases.get(name) {
                let full: Vec<String> = alias.iter().chain(rest).cloned().collect();
                return self.resolve(module, &full, depth + 1).or_else(|| Some(module.clone()));
            }
            for glob in &source.globs {
                let Some(origin) = self.resolve(module, glob, depth + 1) else { continue };
                if self.sources.get(&origin).is_some_and(|source| source.defined.contains(name)) {
                    return Some(origin);
                }
            }
        }
        Some(module.clone())
    }

    /// The import circles: groups of files each of which imports, directly or not, all of its
    /// group.
    pub(crate) fn circles(&self) -> Vec<Vec<Module>> {
        let edges = self.edges();
        let reach: BTreeMap<&Module, BTreeSet<&Module>> =
            edges.keys().map(|module| (module, reachable(&edges, module))).collect();
        let mut placed = BTreeSet::new();
        let mut circles = Vec::new();
        for module in edges.keys() {
            if !reach[module].contains(module) || placed.contains(module) {
                continue;
            }
            let circle: Vec<Module> = reach[module]
                .iter()
                .filter(|other| reach.get(*other).is_some_and(|back| back.contains(module)))
                .map(|other| (*other).clone())
                .collect();
            placed.extend(circle.iter().cloned());
            circles.push(circle);
        }
        circles
    }
}

fn reachable<'a>(
    edges: &'a BTreeMap<Module, BTreeSet<Module>>,
    from: &Module,
) -> BTreeSet<&'a Module> {
    let mut seen = BTreeSet::new();
    let mut open: Vec<&Module> = edges[from].iter().collect();
    while let Some(module) = open.pop() {
        if seen.insert(module) {
            open.extend(edges.get(module).into_iter().flatten());
        }
    }
    seen
}

/// The crate's files with their modules. `main.rs` counts as the module `main`.
fn files(folder: &Path) -> Vec<(Module, PathBuf)> {
    fn walk(folder: &Path, module: &Module, out: &mut Vec<(Module, PathBuf)>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            let mut child = module.clone();
            if path.is_dir() {
                if path.join("Cargo.toml").exists() || name == "examples" || name == "gen" {
                    continue;
                }
                child.push(name);
                walk(&path, &child, out);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                if name != "lib" {
                    child.push(name);
                }
                out.push((child, path));
            }
        }
    }
    let mut out = Vec::new();
    walk(folder, &Vec::new(), &mut out);
    out
}

impl Source {
    fn add_items(&mut self, items: &[syn::Item]) {
        for item in items {
            if is_test(attributes(item)) {
                continue;
            }
            match item {
                syn::Item::Mod(inner) => match &inner.content {
                    None => drop(self.children.insert(inner.ident.to_string())),
                    Some((_, items)) => {
                        let mut nested = Self::default();
                        nested.add_items(items);
                        self.paths.extend(nested.paths.into_iter().filter_map(outside));
                    }
                },
                syn::Item::Use(declaration) => {
                    let is_export = !matches!(declaration.vis, syn::Visibility::Inherited);
                    self.add_use(&declaration.tree, &mut Vec::new(), is_export);
                }
                item => {
                    if let Some(name) = name_of(item) {
                        self.defined.insert(name);
                    }
                    self.add_paths(item.to_token_stream());
                }
            }
        }
    }

    fn add_use(&mut self, tree: &syn::UseTree, prefix: &mut Vec<String>, is_export: bool) {
        let mut add = |name: String, path: Vec<String>| {
            if !is_export {
                self.paths.push(path.clone());
            }
            self.aliases.insert(name, path);
        };
        match tree {
            syn::UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                self.add_use(&path.tree, prefix, is_export);
                prefix.pop();
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                add(prefix.last().cloned().unwrap_or_default(), prefix.clone());
            }
            syn::UseTree::Name(name) => {
                let name = name.ident.to_string();
                add(name.clone(), [prefix.as_slice(), &[name]].concat());
            }
            syn::UseTree::Rename(rename) => {
                let path = [prefix.as_slice(), &[rename.ident.to_string()]].concat();
                add(rename.rename.to_string(), path);
            }
            syn::UseTree::Glob(_) => {
                if !is_export {
                    self.paths.push(prefix.clone());
                }
                self.globs.push(prefix.clone());
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, prefix, is_export);
                }
            }
        }
    }

    /// Collects `a::b::c` from code, the insides of macros included.
    fn add_paths(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) if path.is_empty() || colons == 2 => {
                    path.push(name.to_string());
                    colons = 0;
                    continue;
                }
                TokenTree::Ident(name) => {
                    self.end_path(&mut path);
                    path.push(name.to_string());
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' && !path.is_empty() => {
                    colons += 1;
                    continue;
                }
                TokenTree::Group(group) => {
                    if group.delimiter() == Delimiter::Brace && colons == 2 {
                        // A `use` inside of a function: its names share the path before them.
                        for name in group.stream() {
                            if let TokenTree::Ident(name) = name {
                                let full = [path.as_slice(), &[name.to_string()]].concat();
                                self.paths.push(full);
                            }
                        }
                    }
                    self.end_path(&mut path);
                    self.add_paths(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => self.end_path(&mut path),
            }
            colons = 0;
        }
        self.end_path(&mut path);
    }

    fn end_path(&mut self, path: &mut Vec<String>) {
        if path.len() > 1 {
            self.paths.push(std::mem::take(path));
        }
        path.clear();
    }
}

/// A path of an inline module, as its file would write it.
fn outside(path: Vec<String>) -> Option<Vec<String>> {
    match path.first().map(String::as_str) {
        Some("super") => Some(path[1..].to_vec()).filter(|rest| rest.len() > 1),
        _ => Some(path),
    }
}

fn is_test(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg") && {
            let text = attribute.meta.to_token_stream().to_string();
            text.contains("test") && !text.contains("not")
        }
    })
}

fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn name_of(item: &syn::Item) -> Option<String> {
    Some(match item {
        syn::Item::Const(item) => item.ident.to_string(),
        syn::Item::Enum(item) => item.ident.to_string(),
        syn::Item::Fn(item) => item.sig.ident.to_string(),
        syn::Item::Macro(item) => item.ident.as_ref()?.to_string(),
        syn::Item::Static(item) => item.ident.to_string(),
        syn::Item::Struct(item) => item.ident.to_string(),
        syn::Item::Trait(item) => item.ident.to_string(),
        syn::Item::Type(item) => item.ident.to_string(),
        _ => return None,
    })
}
