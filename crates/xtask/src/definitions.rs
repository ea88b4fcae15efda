//! Lists the items that the workspace defines, with the place and the first doc line of each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use proc_macro2::Span;
use syn::visit::{self, Visit};

/// The kind of a defined item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ItemKind {
    /// A struct, enum or union.
    Type,
    /// A trait.
    Trait,
    /// A type alias outside of an `impl`.
    Alias,
    /// A free function or method.
    Function,
    /// A named field.
    Field,
    /// A variant of an enum.
    Variant,
    /// A module.
    Module,
    /// A constant or static.
    Constant,
}

/// One defined item.
#[derive(Debug)]
pub(crate) struct Definition {
    /// File, relative to the root of the repository.
    pub(crate) file: PathBuf,
    /// Line, from 1.
    pub(crate) line: usize,
    /// Column in characters, from 0.
    pub(crate) column: usize,
    /// Kind of the item.
    pub(crate) kind: ItemKind,
    /// Name with the type that owns it, such as `Outcome::text`.
    pub(crate) path: String,
    /// The item's own identifier.
    pub(crate) name: String,
    /// True if the item is declared `pub`, or is part of a `pub` enum or trait.
    pub(crate) is_public: bool,
    /// First line of the item's doc comment; empty if it has none.
    pub(crate) summary: String,
}

/// Lists every item defined under `crates/` and `engines/`.
///
/// # Errors
///
/// Fails if a file cannot be read or is not Rust.
pub(crate) fn list_definitions(root: &Path) -> io::Result<Vec<Definition>> {
    let mut files = Vec::new();
    for folder in ["crates", "engines"] {
        collect_rust_files(&root.join(folder), &mut files)?;
    }
    files.sort();
    let mut definitions = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        let parsed = match syn::parse_file(&text) {
            Ok(parsed) => parsed,
            // Compile-fail fixtures may hold text that is not Rust.
            Err(_) if file.components().any(|part| part.as_os_str() == "ui") => continue,
            Err(error) => return Err(io::Error::other(format!("{}: {error}", file.display()))),
        };
        let file = file.strip_prefix(root).unwrap_or(&file).to_owned();
        let mut collector = Collector { file, owners: Vec::new(), definitions: Vec::new() };
        collector.visit_file(&parsed);
        definitions.append(&mut collector.definitions);
    }
    Ok(definitions)
}

fn collect_rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            if path.file_name().is_some_and(|name| name != "target") {
                collect_rust_files(&path, files)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Collects the definitions of one file.
struct Collector {
    file: PathBuf,
    owners: Vec<Owner>,
    definitions: Vec<Definition>,
}

/// The type, trait or `impl` that encloses an item.
struct Owner {
    name: String,
    is_public: bool,
}

impl Collector {
    fn add(&mut self, kind: ItemKind, ident: &syn::Ident, is_public: bool, attrs: &[syn::Attribute]) {
        let start = Span::start(&ident.span());
        let name = ident.to_string();
        let path = match self.owners.last() {
            Some(owner) => format!("{}::{name}", owner.name),
            None => name.clone(),
        };
        let summary = doc_summary(attrs);
        let file = self.file.clone();
        self.definitions.push(Definition {
            file,
            line: start.line,
            column: start.column,
            kind,
            path,
            name,
            is_public,
            summary,
        });
    }

    fn inside(&mut self, owner: Owner, visit: impl FnOnce(&mut Self)) {
        self.owners.push(owner);
        visit(self);
        self.owners.pop();
    }
}

impl<'ast> Visit<'ast> for Collector {
    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        let is_public = is_public(&item.vis);
        self.add(ItemKind::Type, &item.ident, is_public, &item.attrs);
        let owner = Owner { name: item.ident.to_string(), is_public };
        self.inside(owner, |this| visit::visit_item_struct(this, item));
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        let is_public = is_public(&item.vis);
        self.add(ItemKind::Type, &item.ident, is_public, &item.attrs);
        let owner = Owner { name: item.ident.to_string(), is_public };
        self.inside(owner, |this| visit::visit_item_enum(this, item));
    }

    fn visit_item_union(&mut self, item: &'ast syn::ItemUnion) {
        self.add(ItemKind::Type, &item.ident, is_public(&item.vis), &item.attrs);
    }

    fn visit_item_trait(&mut self, item: &'ast syn::ItemTrait) {
        let is_public = is_public(&item.vis);
        self.add(ItemKind::Trait, &item.ident, is_public, &item.attrs);
        let owner = Owner { name: item.ident.to_string(), is_public };
        self.inside(owner, |this| visit::visit_item_trait(this, item));
    }

    fn visit_item_type(&mut self, item: &'ast syn::ItemType) {
        self.add(ItemKind::Alias, &item.ident, is_public(&item.vis), &item.attrs);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let name = type_name(&item.self_ty);
        // Names in the impl of a trait belong to the trait.
        if item.trait_.is_none() {
            self.inside(Owner { name, is_public: false }, |this| visit::visit_item_impl(this, item));
        }
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        let is_public = self.owners.last().is_some_and(|owner| owner.is_public);
        self.add(ItemKind::Variant, &variant.ident, is_public, &variant.attrs);
        let enclosing = self.owners.last().map(|owner| owner.name.clone()).unwrap_or_default();
        let owner = Owner { name: format!("{enclosing}::{}", variant.ident), is_public };
        self.inside(owner, |this| visit::visit_variant(this, variant));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        if let Some(ident) = &field.ident {
            self.add(ItemKind::Field, ident, is_public(&field.vis), &field.attrs);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.add(ItemKind::Function, &item.sig.ident, is_public(&item.vis), &item.attrs);
        let owners = std::mem::take(&mut self.owners);
        visit::visit_item_fn(self, item);
        self.owners = owners;
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.add(ItemKind::Function, &item.sig.ident, is_public(&item.vis), &item.attrs);
        let owners = std::mem::take(&mut self.owners);
        visit::visit_impl_item_fn(self, item);
        self.owners = owners;
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        let is_public = self.owners.last().is_some_and(|owner| owner.is_public);
        self.add(ItemKind::Function, &item.sig.ident, is_public, &item.attrs);
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        self.add(ItemKind::Module, &item.ident, is_public(&item.vis), &item.attrs);
        let owners = std::mem::take(&mut self.owners);
        visit::visit_item_mod(self, item);
        self.owners = owners;
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.add(ItemKind::Constant, &item.ident, is_public(&item.vis), &item.attrs);
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.add(ItemKind::Constant, &item.ident, is_public(&item.vis), &item.attrs);
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.add(ItemKind::Constant, &item.ident, is_public(&item.vis), &item.attrs);
    }
}

fn is_public(visibility: &syn::Visibility) -> bool {
    matches!(visibility, syn::Visibility::Public(_))
}

fn type_name(ty: &syn::Type) -> String {
    match ty {
        syn::Type::Path(path) => {
            path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
        }
        syn::Type::Reference(reference) => type_name(&reference.elem),
        _ => String::new(),
    }
}

fn doc_summary(attrs: &[syn::Attribute]) -> String {
    for attr in attrs {
        if let syn::Meta::NameValue(meta) = &attr.meta
            && attr.path().is_ident("doc")
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &meta.value
        {
            return text.value().trim().to_owned();
        }
    }
    String::new()
}
