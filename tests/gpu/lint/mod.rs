//! Rules that keep shaders right on backends nobody here can run: what compilers for Apple GPUs get
//! wrong or may assume, what browsers refuse, and what the WebGPU baseline has room for.

mod loops;
mod uniformity;

use naga::{
    AddressSpace, BinaryOperator, Expression, Function, GlobalVariable, Handle, Literal,
    MathFunction, Module, RelationalFunction, ScalarKind, ShaderStage, Type, TypeInner, VectorSize,
    valid::FunctionInfo,
};

use crate::modules::Shader;

/// Largest sum of workgroup memory: the baseline's.
const WORKGROUP_BYTES: u32 = 16 * 1024;
/// Most storage buffers a stage: the baseline's.
const STORAGE_BUFFERS: usize = 8;

/// A rule that a shader breaks, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Short name of the rule.
    pub rule: &'static str,
    /// Function, variable or line.
    pub place: String,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.rule, self.place)
    }
}

fn fault(rule: &'static str, place: impl Into<String>) -> Fault {
    Fault { rule, place: place.into() }
}

/// Workgroup memory that a variant may take. One that is for devices with more than the baseline has a
/// constant that says how much, and the library builds it where there is so much.
fn room(name: &str) -> u32 {
    let said = name.split("(\"PLAIN_STORAGE\", ").nth(1);
    let said = said.and_then(|rest| rest.split(')').next()?.parse().ok());
    said.unwrap_or(WORKGROUP_BYTES)
}

/// Checks a module.
pub fn module(shader: &Shader) -> Vec<Fault> {
    let (module, info) = (&shader.module, &shader.info);
    let mut faults = Vec::new();
    entry(module, &mut faults);
    for (_, variable) in module.global_variables.iter() {
        global(module, variable, &mut faults);
    }
    let workgroup: u32 = module
        .global_variables
        .iter()
        .filter(|(_, v)| v.space == AddressSpace::WorkGroup)
        // Metal rounds each variable up to 16 bytes.
        .map(|(_, v)| module.types[v.ty].inner.size(module.to_ctx()).next_multiple_of(16))
        .sum();
    if workgroup > room(&shader.name) {
        faults.push(fault("workgroup memory", format!("{workgroup} bytes")));
    }
    let storage = |v: &GlobalVariable| matches!(v.space, AddressSpace::Storage { .. });
    let buffers = module.global_variables.iter().filter(|(_, v)| storage(v)).count();
    if buffers > STORAGE_BUFFERS {
        faults.push(fault("storage buffers", format!("{buffers}")));
    }
    for (handle, function) in module.functions.iter() {
        let name = function.name.as_deref().unwrap_or("a function");
        ends(module, function, name, &mut faults);
        Body { module, function, info: &shader.info[handle], name }.check(&mut faults);
    }
    for (index, point) in module.entry_points.iter().enumerate() {
        let body = Body {
            module,
            function: &point.function,
            info: info.get_entry_point(index),
            name: &point.name,
        };
        body.check(&mut faults);
        ends(module, &point.function, &point.name, &mut faults);
        for place in uniformity::divergent_barriers(module, &point.function) {
            faults.push(fault("barrier in divergent control flow", place));
        }
    }
    faults.sort();
    faults.dedup();
    faults
}

fn ends(module: &Module, function: &Function, name: &str, faults: &mut Vec<Fault>) {
    for lack in loops::endless(module, function) {
        faults.push(fault("loop without an end in sight", format!("{lack} in {name}")));
    }
}

fn entry(module: &Module, faults: &mut Vec<Fault>) {
    let [point] = &module.entry_points[..] else {
        faults.push(fault("entry point", format!("{} of them", module.entry_points.len())));
        return;
    };
    if point.name != "main" || point.stage != ShaderStage::Compute {
        faults.push(fault("entry point", point.name.clone()));
    }
    let threads: u32 = point.workgroup_size.iter().product();
    if !(64..=256).contains(&threads) || !threads.is_multiple_of(32) {
        faults.push(fault("workgroup size", format!("{:?}", point.workgroup_size)));
    }
}

fn global(module: &Module, variable: &GlobalVariable, faults: &mut Vec<Fault>) {
    let name = || variable.name.clone().unwrap_or_default();
    if variable.space == AddressSpace::Private && holds_array(module, variable.ty) {
        faults.push(fault("private table", name()));
    }
    if variable.binding.is_some_and(|binding| binding.group != 0) {
        faults.push(fault("bind group", name()));
    }
    let shared = matches!(
        variable.space,
        AddressSpace::Uniform | AddressSpace::Storage { .. } | AddressSpace::WorkGroup
    );
    if shared && holds_vec3(module, variable.ty) {
        faults.push(fault("vec3 in memory", name()));
    }
    if holds_float_atomic(module, variable.ty) {
        faults.push(fault("float atomic", name()));
    }
}

/// Whether a type, or a part of it, fulfils `test`.
fn any_part(module: &Module, ty: Handle<Type>, test: &dyn Fn(&TypeInner) -> bool) -> bool {
    let inner = &module.types[ty].inner;
    test(inner)
        || match inner {
            TypeInner::Array { base, .. } => any_part(module, *base, test),
            TypeInner::Struct { members, .. } => {
                members.iter().any(|member| any_part(module, member.ty, test))
            }
            _ => false,
        }
}

fn holds_array(module: &Module, ty: Handle<Type>) -> bool {
    any_part(module, ty, &|inner| matches!(inner, TypeInner::Array { .. }))
}

fn holds_vec3(module: &Module, ty: Handle<Type>) -> bool {
    any_part(module, ty, &|inner| {
        matches!(
            inner,
            TypeInner::Vector { size: VectorSize::Tri, .. }
                | TypeInner::Matrix { rows: VectorSize::Tri, .. }
        )
    })
}

fn holds_float_atomic(module: &Module, ty: Handle<Type>) -> bool {
    any_part(
        module,
        ty,
        &|inner| matches!(inner, TypeInner::Atomic(scalar) if scalar.kind == ScalarKind::Float),
    )
}

fn inner_holds_array(module: &Module, inner: &TypeInner) -> bool {
    match inner {
        TypeInner::Array { .. } => true,
        TypeInner::Struct { members, .. } => members.iter().any(|m| holds_array(module, m.ty)),
        _ => false,
    }
}

/// A function under check.
struct Body<'a> {
    module: &'a Module,
    function: &'a Function,
    info: &'a FunctionInfo,
    name: &'a str,
}

impl Body<'_> {
    fn inner(&self, expression: Handle<Expression>) -> &TypeInner {
        self.info[expression].ty.inner_with(&self.module.types)
    }

    fn kind(&self, expression: Handle<Expression>) -> Option<ScalarKind> {
        self.inner(expression).scalar().map(|scalar| scalar.kind)
    }

    fn check(&self, faults: &mut Vec<Fault>) {
        let mut add = |rule, what: &str| {
            let place = if what.is_empty() {
                self.name.to_owned()
            } else {
                format!("{} in {}", what, self.name)
            };
            faults.push(fault(rule, place));
        };
        for argument in &self.function.arguments {
            if holds_array(self.module, argument.ty) {
                add("array by value", argument.name.as_deref().unwrap_or("an argument"));
            }
        }
        if self.function.result.as_ref().is_some_and(|r| holds_array(self.module, r.ty)) {
            add("array by value", "the result");
        }
        for (_, local) in self.function.local_variables.iter() {
            let zero = |e| matches!(self.function.expressions[e], Expression::ZeroValue(_));
            if holds_array(self.module, local.ty) && local.init.is_some_and(|e| !zero(e)) {
                add("array by value", local.name.as_deref().unwrap_or("a variable"));
            }
        }
        for (handle, expression) in self.function.expressions.iter() {
            self.expression(handle, expression, &mut add);
        }
    }

    fn expression(
        &self,
        handle: Handle<Expression>,
        expression: &Expression,
        add: &mut dyn FnMut(&'static str, &str),
    ) {
        match *expression {
            Expression::Literal(Literal::F32(value)) if !value.is_finite() => {
                add("NaN or Inf", "a constant");
            }
            Expression::Relational {
                fun: RelationalFunction::IsNan | RelationalFunction::IsInf,
                ..
            } => add("NaN or Inf", "a test"),
            Expression::As { expr, kind: ScalarKind::Float, convert: None }
                if self.word(expr).is_some_and(|word| word & 0x7f80_0000 == 0x7f80_0000) =>
            {
                add("NaN or Inf", "a bitcast constant");
            }
            Expression::Load { .. } | Expression::Compose { .. }
                if inner_holds_array(self.module, self.inner(handle)) =>
            {
                add("array by value", "a copy");
            }
            Expression::Access { base, index } if self.local_array(base) && !self.fixed(index) => {
                add("dynamic index of a local array", "");
            }
            Expression::Binary { op, left, right } => self.binary(op, left, right, add),
            Expression::Math { fun, .. } => match fun {
                MathFunction::Unpack2x16unorm | MathFunction::Unpack2x16snorm => {
                    add("unpack2x16", "");
                }
                MathFunction::Pack2x16float | MathFunction::QuantizeToF16 => {
                    add("rounding to f16 that the device chooses", "");
                }
                MathFunction::Exp | MathFunction::Log | MathFunction::Pow => {
                    add("exp2 and log2 only", "");
                }
                _ => {}
            },
            _ => {}
        }
    }

    fn binary(
        &self,
        op: BinaryOperator,
        left: Handle<Expression>,
        right: Handle<Expression>,
        add: &mut dyn FnMut(&'static str, &str),
    ) {
        use BinaryOperator::{
            Divide, Equal, Greater, GreaterEqual, Less, LessEqual, Modulo, NotEqual,
        };
        match (op, self.kind(left)) {
            (Divide | Modulo, Some(ScalarKind::Sint | ScalarKind::Uint)) => {
                add("integer division", "");
            }
            (Equal | NotEqual, Some(ScalarKind::Float)) if self.same(left, right) => {
                add("NaN or Inf", "a value compared with itself");
            }
            (
                Equal | NotEqual | Less | LessEqual | Greater | GreaterEqual,
                Some(ScalarKind::Float),
            ) if [left, right].into_iter().any(|side| self.extreme(side)) => {
                add("NaN or Inf", "a comparison with the end of f32's range");
            }
            _ => {}
        }
    }

    fn constant<'e>(&'e self, mut expression: &'e Expression) -> Option<Literal> {
        let mut depth = 0;
        let mut arena = &self.function.expressions;
        loop {
            match *expression {
                Expression::Literal(literal) => return Some(literal),
                Expression::Constant(constant) => {
                    arena = &self.module.global_expressions;
                    expression = &arena[self.module.constants[constant].init];
                }
                Expression::Splat { value, .. } => expression = &arena[value],
                Expression::Unary { expr, .. } => expression = &arena[expr],
                _ => return None,
            }
            depth += 1;
            if depth > 16 {
                return None;
            }
        }
    }

    fn word(&self, expression: Handle<Expression>) -> Option<u32> {
        match self.constant(&self.function.expressions[expression]) {
            Some(Literal::U32(word)) => Some(word),
            Some(Literal::I32(word)) => Some(word as u32),
            _ => None,
        }
    }

    fn fixed(&self, index: Handle<Expression>) -> bool {
        self.constant(&self.function.expressions[index]).is_some()
    }

    fn extreme(&self, expression: Handle<Expression>) -> bool {
        let literal = self.constant(&self.function.expressions[expression]);
        matches!(literal, Some(Literal::F32(value)) if value.abs() >= 3.4e38)
    }

    /// Whether `base` is an array of a function, by pointer or by value; a module's constant is not.
    fn local_array(&self, base: Handle<Expression>) -> bool {
        let is_array =
            |ty: Handle<Type>| matches!(self.module.types[ty].inner, TypeInner::Array { .. });
        match *self.inner(base) {
            TypeInner::Pointer { base, space: AddressSpace::Function | AddressSpace::Private } => {
                is_array(base)
            }
            TypeInner::Array { .. } => {
                !matches!(self.function.expressions[base], Expression::Constant(_))
            }
            _ => false,
        }
    }

    /// Whether two expressions read the same thing.
    fn same(&self, left: Handle<Expression>, right: Handle<Expression>) -> bool {
        if left == right {
            return true;
        }
        match (&self.function.expressions[left], &self.function.expressions[right]) {
            (Expression::Load { pointer: a }, Expression::Load { pointer: b }) => self.same(*a, *b),
            (
                Expression::Access { base: a, index: i },
                Expression::Access { base: b, index: j },
            ) => self.same(*a, *b) && self.same(*i, *j),
            (
                Expression::AccessIndex { base: a, index: i },
                Expression::AccessIndex { base: b, index: j },
            ) => i == j && self.same(*a, *b),
            (Expression::GlobalVariable(a), Expression::GlobalVariable(b)) => a == b,
            (Expression::LocalVariable(a), Expression::LocalVariable(b)) => a == b,
            (Expression::FunctionArgument(a), Expression::FunctionArgument(b)) => a == b,
            (Expression::Literal(a), Expression::Literal(b)) => a == b,
            (Expression::Constant(a), Expression::Constant(b)) => a == b,
            (
                Expression::As { expr: a, kind: k, convert: c },
                Expression::As { expr: b, kind: l, convert: d },
            ) => k == l && c == d && self.same(*a, *b),
            _ => false,
        }
    }
}

/// Checks Metal text, where some rules show more plainly than in the module.
pub fn msl(text: &str) -> Vec<Fault> {
    const WORDS: [(&str, &str); 8] = [
        ("NaN or Inf", "isnan"),
        ("NaN or Inf", "isinf"),
        ("NaN or Inf", "INFINITY"),
        ("NaN or Inf", "NAN"),
        ("integer division", "naga_div"),
        ("integer division", "naga_mod"),
        ("unpack2x16", "unpack_unorm2x16_to_float"),
        ("unpack2x16", "unpack_snorm2x16_to_float"),
    ];
    let wrappers: Vec<&str> = text
        .lines()
        .zip(text.lines().skip(1))
        .filter(|(_, member)| member.contains(" inner["))
        .filter_map(|(head, _)| head.trim().strip_prefix("struct ")?.strip_suffix(" {"))
        .collect();
    let mut faults = Vec::new();
    let mut bounded = false;
    for line in text.lines().map(str::trim) {
        let words = || line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for (rule, word) in WORDS {
            if words().any(|w| w == word) {
                faults.push(fault(rule, line));
            }
        }
        if let Some(rest) = line.split("max_total_threads_per_threadgroup(").nth(1) {
            let threads = rest.split(')').next().and_then(|n| n.parse::<u32>().ok());
            bounded = true;
            if threads.is_none_or(|n| n < 64) {
                faults.push(fault("workgroup size", line));
            }
        }
        let declared = line.strip_prefix(", ").unwrap_or(line);
        if wrappers.iter().any(|w| declared.strip_prefix(w).is_some_and(|r| r.starts_with(' '))) {
            let copied = line.contains(" = ") && !line.ends_with("= {};");
            let argument = !line.contains('=') && !line.ends_with(';') && !line.ends_with('{');
            if copied || argument {
                faults.push(fault("array by value", line));
            }
        }
        if compares_with_itself(line) {
            faults.push(fault("NaN or Inf", line));
        }
    }
    if !bounded {
        faults.push(fault("workgroup size", "no bound on threads was written"));
    }
    faults
}

fn compares_with_itself(line: &str) -> bool {
    let part = |c: char| c.is_ascii_alphanumeric() || "_.[]".contains(c);
    [" != ", " == "].iter().any(|operator| {
        line.match_indices(operator).any(|(at, _)| {
            let left = line[..at].rsplit(|c| !part(c)).next().unwrap_or("");
            let right = line[at + operator.len()..].split(|c| !part(c)).next().unwrap_or("");
            !left.is_empty() && left == right
        })
    })
}
