#!/usr/bin/env python3
"""Lists the public API of the library, an item a line, from rustdoc's JSON.

usage: public_api.py target/doc/wgkv.json > tests/data/public_api.txt

tools/api/check makes the JSON and compares the list with the one in the repository, so that a change of the
API is seen and not made by accident. Implementations of traits that every type has are left out.
"""

import json
import sys

# Of no consequence to a caller, or implied by others.
LEFT_OUT = {"StructuralPartialEq", "Freeze", "UnsafeUnpin", "Unpin", "RefUnwindSafe", "UnwindSafe", "Send", "Sync"}


class Api:
    def __init__(self, crate):
        self.index = crate["index"]
        self.lines = set()
        self.seen = set()

    def item(self, key):
        return self.index.get(str(key))

    # Types in the words of the source.

    def type(self, ty):
        if ty is None:
            return "()"
        if isinstance(ty, str):
            return "_"
        ((kind, of),) = ty.items()
        match kind:
            case "resolved_path":
                return self.path(of)
            case "dyn_trait":
                parts = [self.path(t["trait"]) for t in of["traits"]]
                return "dyn " + " + ".join(parts + [of["lifetime"]] * bool(of.get("lifetime")))
            case "generic" | "primitive":
                return of
            case "tuple":
                return "(" + ", ".join(map(self.type, of)) + ")"
            case "slice":
                return f"[{self.type(of)}]"
            case "array":
                return f"[{self.type(of['type'])}; {of['len']}]"
            case "borrowed_ref":
                life = (of.get("lifetime") or "") + " " if of.get("lifetime") else ""
                return f"&{life}{'mut ' if of['is_mutable'] else ''}{self.type(of['type'])}"
            case "raw_pointer":
                return f"*{'mut' if of['is_mutable'] else 'const'} {self.type(of['type'])}"
            case "impl_trait":
                return "impl " + " + ".join(map(self.bound, of))
            case "qualified_path":
                base = of.get("trait")
                own = self.type(of["self_type"])
                base = self.path(base) if base else ""
                return f"<{own} as {base}>::{of['name']}" if base else f"{own}::{of['name']}"
            case "function_pointer":
                return "fn" + self.signature(of["sig"])
        return kind

    def path(self, path):
        name = path.get("path") or path.get("name") or ""
        return name.split("::")[-1] + self.arguments(path.get("args"))

    def arguments(self, args):
        if not args:
            return ""
        ((kind, of),) = args.items() if isinstance(args, dict) else ((args, None),)
        if kind == "parenthesized":
            output = of.get("output")
            text = "(" + ", ".join(map(self.type, of["inputs"])) + ")"
            return text + (f" -> {self.type(output)}" if output else "")
        if kind != "angle_bracketed":
            return ""
        parts = []
        for arg in of["args"]:
            ((form, value),) = arg.items() if isinstance(arg, dict) else (("infer", None),)
            parts.append(value if form == "lifetime" else self.type(value) if form == "type" else str(value.get("expr")) if form == "const" else "_")
        for bound in of.get("constraints") or []:
            binding = bound["binding"]
            if "equality" in binding:
                term = binding["equality"]
                parts.append(f"{bound['name']} = {self.type(term['type']) if 'type' in term else term}")
            else:
                parts.append(f"{bound['name']}: " + " + ".join(map(self.bound, binding["constraint"])))
        return f"<{', '.join(parts)}>" if parts else ""

    def bound(self, bound):
        ((kind, of),) = bound.items()
        if kind == "trait_bound":
            sign = "?" if of.get("modifier") == "maybe" else ""
            return sign + self.path(of["trait"])
        return of if isinstance(of, str) else kind

    def generics(self, generics):
        names = []
        for param in generics["params"]:
            ((kind, of),) = param["kind"].items()
            if kind == "type" and of.get("is_synthetic"):
                continue
            text = f"const {param['name']}: {self.type(of['type'])}" if kind == "const" else param["name"]
            bounds = of.get("bounds") or []
            names.append(text + (": " + " + ".join(map(self.bound, bounds)) if bounds else ""))
        wheres = []
        for predicate in generics["where_predicates"]:
            of = predicate.get("bound_predicate")
            if of:
                wheres.append(f"{self.type(of['type'])}: " + " + ".join(map(self.bound, of["bounds"])))
        return f"<{', '.join(names)}>" if names else "", f" where {', '.join(wheres)}" if wheres else ""

    def signature(self, sig):
        inputs = []
        for name, ty in sig["inputs"]:
            text = self.type(ty)
            own = {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}
            inputs.append(own.get(text, f"self: {text}") if name == "self" else text)
        output = f" -> {self.type(sig['output'])}" if sig["output"] else ""
        return f"({', '.join(inputs)}){output}"

    # Items.

    def add(self, line):
        self.lines.add(line)

    def walk(self, key, path):
        item = self.item(key)
        if item is None or (key, path) in self.seen:
            return
        self.seen.add((key, path))
        ((kind, of),) = item["inner"].items()
        name = f"{path}::{item['name']}" if path else item["name"]
        match kind:
            case "module":
                self.add(f"mod {name}")
                for child in of["items"]:
                    self.walk(child, name)
            case "use":
                target = self.item(of["id"]) if of["id"] is not None else None
                if target is None:
                    self.add(f"use {path}::{of['name']} = {of['source']}")
                elif of["is_glob"]:
                    for child in next(iter(target["inner"].values()))["items"]:
                        self.walk(child, path)
                else:
                    self.renamed(of["id"], path, of["name"])
            case "struct" | "union":
                self.structure(item, of, name)
            case "enum":
                self.add(f"enum {name}{self.generics(of['generics'])[0]}{self.marks(item)}")
                for variant in of["variants"]:
                    self.variant(variant, name)
                self.implementations(of, name)
            case "function":
                self.add(self.function(item, of, name))
            case "constant":
                self.add(f"const {name}: {self.type(of['type'])}")
            case "static":
                self.add(f"static {name}: {self.type(of['type'])}")
            case "type_alias":
                self.add(f"type {name}{self.generics(of['generics'])[0]} = {self.type(of['type'])}")
            case "trait":
                bounds = ": " + " + ".join(map(self.bound, of["bounds"])) if of["bounds"] else ""
                self.add(f"trait {name}{self.generics(of['generics'])[0]}{bounds}")
                for child in of["items"]:
                    self.member(child, name)
            case "macro":
                self.add(f"macro {name}")

    def renamed(self, key, path, name):
        item = dict(self.item(key), name=name)
        kept, self.index[str(key)] = self.index[str(key)], item
        self.walk(key, path)
        self.index[str(key)] = kept

    def marks(self, item):
        attributes = map(str, item.get("attrs") or [])
        return " (non-exhaustive)" if any("non_exhaustive" in mark for mark in attributes) else ""

    def structure(self, item, of, name):
        ((kind, fields),) = of["kind"].items() if isinstance(of["kind"], dict) else ((of["kind"], None),)
        self.add(f"struct {name}{self.generics(of['generics'])[0]}{self.marks(item)}")
        if kind == "plain":
            for field in fields["fields"]:
                self.field(field, name)
        elif kind == "tuple":
            for number, field in enumerate(fields):
                if field is not None and self.item(field)["visibility"] == "public":
                    self.add(f"field {name}::{number}: {self.type(self.item(field)['inner']['struct_field'])}")
        self.implementations(of, name)

    def field(self, key, name):
        field = self.item(key)
        if field is not None and field["visibility"] in ("public", "default"):
            self.add(f"field {name}::{field['name']}: {self.type(field['inner']['struct_field'])}")

    def variant(self, key, name):
        variant = self.item(key)
        of = variant["inner"]["variant"]["kind"]
        own = f"{name}::{variant['name']}"
        if isinstance(of, str):
            self.add(f"variant {own}")
        elif "tuple" in of:
            parts = [self.type(self.item(field)["inner"]["struct_field"]) for field in of["tuple"] if field is not None]
            self.add(f"variant {own}({', '.join(parts)})")
        else:
            self.add(f"variant {own}")
            for field in of["struct"]["fields"]:
                self.field(field, own)

    def function(self, item, of, name):
        generics, wheres = self.generics(of["generics"])
        header = of["header"]
        words = "".join(f"{word} " for word in ("const", "async", "unsafe") if header.get(f"is_{word}"))
        return f"{words}fn {name}{generics}{self.signature(of['sig'])}{wheres}"

    def member(self, key, name):
        item = self.item(key)
        if item is None:
            return
        ((kind, of),) = item["inner"].items()
        own = f"{name}::{item['name']}"
        if kind == "function":
            self.add(self.function(item, of, own))
        elif kind == "assoc_const":
            self.add(f"const {own}: {self.type(of['type'])}")
        elif kind == "assoc_type":
            self.add(f"type {own}")

    def implementations(self, of, name):
        for key in of["impls"]:
            item = self.item(key)
            if item is None:
                continue
            impl = item["inner"]["impl"]
            if impl.get("blanket_impl") or impl.get("is_synthetic"):
                continue
            if impl["trait"] is None:
                for child in impl["items"]:
                    if (found := self.item(child)) and found["visibility"] == "public":
                        self.member(child, name)
            elif self.path(impl["trait"]) not in LEFT_OUT:
                self.add(f"impl {self.path(impl['trait'])} for {name}")


def main(path):
    with open(path, encoding="utf-8") as file:
        crate = json.load(file)
    api = Api(crate)
    api.walk(crate["root"], "")
    print("\n".join(sorted(api.lines)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
