//! Finds barriers that some threads of a workgroup may miss. naga accepts them; browsers refuse
//! them and GPUs may hang.
//!
//! Conservative, as a browser is: what is read from workgroup memory or from a buffer that is
//! written to differs between threads (use `workgroupUniformLoad`); so does a variable that was ever
//! given a differing value or was written under a differing condition.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use naga::{
    AddressSpace, Arena, Binding, Block, BuiltIn, Expression, Function, Handle, LocalVariable,
    Module, Statement, StorageAccess, TypeInner,
};

/// Places of barriers in control flow that is not the same for all threads.
pub fn divergent_barriers(module: &Module, entry: &Function) -> Vec<String> {
    let analysis = Analysis { module, known: RefCell::default(), places: RefCell::default() };
    let arguments = entry
        .arguments
        .iter()
        .map(|argument| match (&argument.binding, &module.types[argument.ty].inner) {
            (Some(Binding::BuiltIn(builtin)), _) => same_for_all(builtin),
            // A struct of builtins: the same only if each of them is.
            (None, TypeInner::Struct { members, .. }) => members.iter().all(
                |m| matches!(&m.binding, Some(Binding::BuiltIn(builtin)) if same_for_all(builtin)),
            ),
            _ => false,
        })
        .collect();
    analysis.function(entry, arguments, true);
    analysis.places.into_inner().into_iter().collect()
}

fn same_for_all(builtin: &BuiltIn) -> bool {
    matches!(builtin, BuiltIn::WorkGroupId | BuiltIn::WorkGroupSize | BuiltIn::NumWorkGroups)
}

struct Analysis<'a> {
    module: &'a Module,
    known: RefCell<HashMap<Call, Summary>>,
    places: RefCell<BTreeSet<String>>,
}

/// A function (by its place in memory), which of its arguments are the same for all threads, and
/// whether all threads make the call.
type Call = (usize, Vec<bool>, bool);

/// What a call leaves behind.
#[derive(Clone)]
struct Summary {
    /// The result is the same for all threads.
    result: bool,
    /// Per argument: the value, or what the pointer points to, is still the same for all.
    arguments: Vec<bool>,
}

impl Analysis<'_> {
    fn function(&self, function: &Function, arguments: Vec<bool>, flow: bool) -> Summary {
        let key = (std::ptr::from_ref(function) as usize, arguments.clone(), flow);
        if let Some(summary) = self.known.borrow().get(&key) {
            return summary.clone();
        }
        let mut state = State {
            analysis: self,
            function,
            arguments,
            locals: Locals::new(&function.local_variables),
            results: HashMap::new(),
            result: true,
            changed: true,
        };
        for (handle, local) in function.local_variables.iter() {
            if local.init.is_some_and(|init| !state.same(init)) {
                state.locals.clear(handle);
            }
        }
        while state.changed {
            state.changed = false;
            state.block(&function.body, flow);
        }
        let summary = Summary { result: state.result, arguments: state.arguments };
        self.known.borrow_mut().insert(key, summary.clone());
        summary
    }
}

struct Locals(Vec<bool>);

impl Locals {
    fn new(arena: &Arena<LocalVariable>) -> Self {
        Self(vec![true; arena.len()])
    }

    fn get(&self, local: Handle<LocalVariable>) -> bool {
        self.0[local.index()]
    }

    fn clear(&mut self, local: Handle<LocalVariable>) -> bool {
        std::mem::replace(&mut self.0[local.index()], false)
    }
}

/// Ways in which some threads, not all, may have left a block.
#[derive(Clone, Copy, Default)]
struct Left {
    by_return: bool,
    by_break: bool,
    by_continue: bool,
}

impl Left {
    fn any(self) -> bool {
        self.by_return || self.by_break || self.by_continue
    }

    fn join(&mut self, other: Self) {
        self.by_return |= other.by_return;
        self.by_break |= other.by_break;
        self.by_continue |= other.by_continue;
    }
}

/// What a pointer leads to.
enum Root {
    Local(Handle<LocalVariable>),
    Argument(u32),
    Global(bool),
}

struct State<'a> {
    analysis: &'a Analysis<'a>,
    function: &'a Function,
    arguments: Vec<bool>,
    locals: Locals,
    results: HashMap<Handle<Expression>, bool>,
    result: bool,
    changed: bool,
}

impl State<'_> {
    fn root(&self, pointer: Handle<Expression>) -> Root {
        match self.function.expressions[pointer] {
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.root(base)
            }
            Expression::LocalVariable(local) => Root::Local(local),
            Expression::FunctionArgument(index) => Root::Argument(index),
            Expression::GlobalVariable(global) => {
                Root::Global(match self.analysis.module.global_variables[global].space {
                    AddressSpace::Uniform | AddressSpace::Immediate => true,
                    AddressSpace::Storage { access } => !access.contains(StorageAccess::STORE),
                    _ => false,
                })
            }
            _ => Root::Global(false),
        }
    }

    fn content(&self, pointer: Handle<Expression>) -> bool {
        self.same(pointer)
            && match self.root(pointer) {
                Root::Local(local) => self.locals.get(local),
                Root::Argument(index) => self.arguments[index as usize],
                Root::Global(same) => same,
            }
    }

    /// Whether a value (or the place that a pointer names) is the same for all threads.
    fn same(&self, expression: Handle<Expression>) -> bool {
        let is_pointer = |index: u32| {
            let ty = self.function.arguments[index as usize].ty;
            matches!(
                self.analysis.module.types[ty].inner,
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
            )
        };
        match self.function.expressions[expression] {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::Override(_)
            | Expression::ZeroValue(_)
            | Expression::GlobalVariable(_)
            | Expression::LocalVariable(_)
            | Expression::WorkGroupUniformLoadResult { .. }
            | Expression::ArrayLength(_) => true,
            Expression::FunctionArgument(index) => {
                is_pointer(index) || self.arguments[index as usize]
            }
            Expression::Compose { ref components, .. } => {
                components.iter().all(|&component| self.same(component))
            }
            Expression::Access { base, index } => self.same(base) && self.same(index),
            Expression::AccessIndex { base, .. } => self.same(base),
            Expression::Splat { value, .. } => self.same(value),
            Expression::Swizzle { vector, .. } => self.same(vector),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => self.same(expr),
            Expression::Relational { argument, .. } => self.same(argument),
            Expression::Binary { left, right, .. } => self.same(left) && self.same(right),
            Expression::Select { condition, accept, reject } => {
                self.same(condition) && self.same(accept) && self.same(reject)
            }
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                [Some(arg), arg1, arg2, arg3].into_iter().flatten().all(|a| self.same(a))
            }
            Expression::Load { pointer } => self.content(pointer),
            Expression::CallResult(_) => self.results.get(&expression).copied().unwrap_or(true),
            _ => false,
        }
    }

    fn spoil(&mut self, pointer: Handle<Expression>) {
        let was = match self.root(pointer) {
            Root::Local(local) => self.locals.clear(local),
            Root::Argument(index) => std::mem::replace(&mut self.arguments[index as usize], false),
            Root::Global(_) => false,
        };
        self.changed |= was;
    }

    fn barrier(&self, flow: bool, what: &str) {
        if !flow {
            let name = self.function.name.as_deref().unwrap_or("main");
            self.analysis.places.borrow_mut().insert(format!("{what} in {name}"));
        }
    }

    fn block(&mut self, block: &Block, flow: bool) -> Left {
        let mut left = Left::default();
        for statement in block {
            let flow = flow && !left.any();
            left.join(self.statement(statement, flow));
        }
        left
    }

    fn statement(&mut self, statement: &Statement, flow: bool) -> Left {
        let mut left = Left::default();
        match statement {
            Statement::Block(block) => left = self.block(block, flow),
            Statement::If { condition, accept, reject } => {
                let inner = flow && self.same(*condition);
                left = self.block(accept, inner);
                left.join(self.block(reject, inner));
            }
            Statement::Switch { selector, cases } => {
                let inner = flow && self.same(*selector);
                for case in cases {
                    left.join(self.block(&case.body, inner));
                }
                left.by_break = false;
            }
            Statement::Loop { body, continuing, break_if } => {
                left.by_return = self.repeat(body, continuing, *break_if, flow);
            }
            Statement::Break => left.by_break = !flow,
            Statement::Continue => left.by_continue = !flow,
            Statement::Return { value } => {
                let same = flow && value.is_none_or(|value| self.same(value));
                self.changed |= self.result && !same;
                self.result &= same;
                left.by_return = !flow;
            }
            Statement::Store { pointer, value }
                if !(flow && self.same(*value) && self.same(*pointer)) =>
            {
                self.spoil(*pointer);
            }
            Statement::ControlBarrier(_) => self.barrier(flow, "a barrier"),
            Statement::WorkGroupUniformLoad { pointer, .. } => {
                self.barrier(flow && self.same(*pointer), "workgroupUniformLoad");
            }
            Statement::Call { function, arguments, result } => {
                self.call(*function, arguments, *result, flow);
            }
            _ => {}
        }
        left
    }

    /// A loop; returns whether some threads, not all, may have returned from inside.
    fn repeat(
        &mut self,
        body: &Block,
        continuing: &Block,
        break_if: Option<Handle<Expression>>,
        flow: bool,
    ) -> bool {
        let mut flow = flow;
        loop {
            let mut left = self.block(body, flow);
            left.by_continue = false;
            left.join(self.block(continuing, flow && !left.any()));
            if break_if.is_some_and(|condition| !self.same(condition)) {
                left.by_break = true;
            }
            if flow && left.any() {
                // Later rounds run without the threads that left.
                flow = false;
            } else {
                return left.by_return;
            }
        }
    }

    fn call(
        &mut self,
        callee: Handle<Function>,
        arguments: &[Handle<Expression>],
        result: Option<Handle<Expression>>,
        flow: bool,
    ) {
        let function = &self.analysis.module.functions[callee];
        let pointer = |ty| {
            matches!(
                self.analysis.module.types[ty].inner,
                TypeInner::Pointer { .. } | TypeInner::ValuePointer { .. }
            )
        };
        let pointers: Vec<bool> = function.arguments.iter().map(|a| pointer(a.ty)).collect();
        let given = arguments
            .iter()
            .zip(&pointers)
            .map(
                |(&argument, &pointer)| {
                    if pointer { self.content(argument) } else { self.same(argument) }
                },
            )
            .collect();
        let summary = self.analysis.function(function, given, flow);
        for ((&argument, pointer), same) in arguments.iter().zip(pointers).zip(summary.arguments) {
            if pointer && !same {
                self.spoil(argument);
            }
        }
        if let Some(result) = result {
            let was = self.results.insert(result, summary.result).unwrap_or(true);
            self.changed |= was != summary.result;
        }
    }
}
