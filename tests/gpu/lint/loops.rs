//! Finds loops that might not end. Shaders are built without the count of rounds that would end any
//! loop, so every loop must be seen to: one variable counts up or down by a fixed step, nothing else
//! writes to it, and what it is compared with stays as it is while the loop runs. Bounds are at most 2^31
//! (`src/gpu/kernel.rs`), so with steps that are small beside that no counter wraps around.

use std::collections::BTreeSet;

use naga::{
    AddressSpace, BinaryOperator, Block, Expression, Function, Handle, Literal, LocalVariable,
    Module, Statement, StorageAccess, StructMember, TypeInner,
};

/// Parameters that loops step by; the host never makes them 0 (`src/attention/gpu/block.rs`,
/// `src/attention/gpu/plain.rs`).
const STEPS: [&str; 3] = ["groups", "span", "subs"];

/// The largest step.
const MAX_STEP: u32 = 1 << 12;

type Expressions = BTreeSet<Handle<Expression>>;
type Locals = BTreeSet<Handle<LocalVariable>>;

/// Loops of a function that are not seen to end, by what they lack.
pub fn endless(module: &Module, function: &Function) -> Vec<String> {
    let mut found = Vec::new();
    Loops { module, function }.block(&function.body, &mut found);
    found
}

struct Loops<'a> {
    module: &'a Module,
    function: &'a Function,
}

impl Loops<'_> {
    fn block(&self, block: &Block, found: &mut Vec<String>) {
        for statement in block {
            match statement {
                Statement::Block(block) => self.block(block, found),
                Statement::If { accept, reject, .. } => {
                    self.block(accept, found);
                    self.block(reject, found);
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().for_each(|case| self.block(&case.body, found));
                }
                Statement::Loop { body, continuing, break_if } => {
                    if let Err(lack) = self.counts(body, continuing, break_if.is_some()) {
                        found.push(lack.into());
                    }
                    self.block(body, found);
                    self.block(continuing, found);
                }
                _ => {}
            }
        }
    }

    fn counts(&self, body: &Block, continuing: &Block, break_if: bool) -> Result<(), &'static str> {
        // What a `for` becomes: its condition first, its step in the end.
        let mut fresh = Expressions::new();
        let mut condition = None;
        for statement in body {
            match statement {
                Statement::Emit(range) => fresh.extend(range.clone()),
                Statement::If { condition: test, accept, reject } => {
                    let ends = matches!(&reject[..], [Statement::Break]) && accept.is_empty();
                    condition = ends.then_some(*test);
                    break;
                }
                _ => break,
            }
        }
        let condition = condition.filter(|_| !break_if).ok_or("no condition at its head")?;
        let steps: Vec<&Statement> =
            continuing.iter().filter(|step| !matches!(step, Statement::Emit(_))).collect();
        let [Statement::Store { pointer, value }] = steps[..] else {
            return Err("no single step at its end");
        };
        let Expression::LocalVariable(counter) = *self.expression(*pointer) else {
            return Err("no variable that counts");
        };
        let mut written = Locals::new();
        self.written(body, &mut written)?;
        if written.contains(&counter) {
            return Err("a counter that is written to");
        }

        let Expression::Binary { op, left, right } = *self.expression(*value) else {
            return Err("a step that does not count");
        };
        if self.local(left) != Some(counter) {
            return Err("a step that does not count");
        }
        let step = self.step(right);
        let up = match (op, step) {
            (BinaryOperator::Add, Some(1..=MAX_STEP)) => true,
            (BinaryOperator::Subtract, Some(1)) | (BinaryOperator::ShiftRight, Some(1..32)) => {
                false
            }
            _ => return Err("a step that is not a fixed number"),
        };

        let Expression::Binary { op, left, right } = *self.expression(condition) else {
            return Err("a condition that compares nothing");
        };
        match (up, op) {
            (true, BinaryOperator::Less | BinaryOperator::LessEqual)
            | (false, BinaryOperator::Greater) => {}
            (false, BinaryOperator::GreaterEqual) if self.number(right) != Some(0) => {}
            _ => return Err("a condition that looks the other way"),
        }
        let reads = |side| self.reads(side, counter);
        if !reads(left) || reads(right) {
            return Err("a condition without the counter on its left");
        }
        if !self.grows(left, counter) {
            return Err("a condition that does not grow with the counter");
        }
        let stays = |side| self.stays(side, counter, &fresh, &written);
        if stays(left) && stays(right) { Ok(()) } else { Err("a bound that may change") }
    }

    fn expression(&self, handle: Handle<Expression>) -> &Expression {
        &self.function.expressions[handle]
    }

    /// The variable that an expression loads.
    fn local(&self, handle: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match *self.expression(handle) {
            Expression::Load { pointer } => match *self.expression(pointer) {
                Expression::LocalVariable(local) => Some(local),
                _ => None,
            },
            _ => None,
        }
    }

    fn number(&self, handle: Handle<Expression>) -> Option<u32> {
        let literal = match *self.expression(handle) {
            Expression::Literal(literal) => literal,
            Expression::Constant(constant) => {
                match self.module.global_expressions[self.module.constants[constant].init] {
                    Expression::Literal(literal) => literal,
                    _ => return None,
                }
            }
            _ => return None,
        };
        match literal {
            Literal::U32(number) => Some(number),
            Literal::I32(number) => u32::try_from(number).ok(),
            _ => None,
        }
    }

    /// The least that a step can be, where that is known.
    fn step(&self, handle: Handle<Expression>) -> Option<u32> {
        match *self.expression(handle) {
            Expression::Binary { op: BinaryOperator::Multiply, left, right } => {
                self.step(left)?.checked_mul(self.step(right)?)
            }
            Expression::Load { pointer } => {
                let name = self.parameter(pointer)?;
                STEPS.contains(&name).then_some(1)
            }
            _ => self.number(handle),
        }
    }

    /// The name of a member of the parameters.
    fn parameter(&self, pointer: Handle<Expression>) -> Option<&str> {
        let Expression::AccessIndex { base, index } = *self.expression(pointer) else {
            return None;
        };
        let mut root = base;
        while let Expression::AccessIndex { base, .. } = *self.expression(root) {
            root = base;
        }
        let Expression::GlobalVariable(global) = *self.expression(root) else { return None };
        let uniform = self.module.global_variables[global].space == AddressSpace::Uniform;
        let members = self.members(base).filter(|_| uniform)?;
        members.get(index as usize)?.name.as_deref()
    }

    /// Members of the structure that a pointer to the parameters points to.
    fn members(&self, pointer: Handle<Expression>) -> Option<&[StructMember]> {
        let ty = match *self.expression(pointer) {
            Expression::GlobalVariable(global) => self.module.global_variables[global].ty,
            Expression::AccessIndex { base, index } => self.members(base)?.get(index as usize)?.ty,
            _ => return None,
        };
        match &self.module.types[ty].inner {
            TypeInner::Struct { members, .. } => Some(members),
            _ => None,
        }
    }

    fn reads(&self, handle: Handle<Expression>, counter: Handle<LocalVariable>) -> bool {
        self.local(handle) == Some(counter)
            || matches!(*self.expression(handle), Expression::Binary { left, right, .. }
                if self.reads(left, counter) || self.reads(right, counter))
    }

    /// The counter itself, or sums and products of it with what is not negative.
    fn grows(&self, handle: Handle<Expression>, counter: Handle<LocalVariable>) -> bool {
        use BinaryOperator::{Add, Multiply};
        match *self.expression(handle) {
            Expression::Binary { op: Add, left, right } => {
                self.grows(left, counter) || self.grows(right, counter)
            }
            Expression::Binary { op: Multiply, left, right } => {
                let by = |side, other| self.grows(side, counter) && self.number(other) >= Some(1);
                by(left, right) || by(right, left)
            }
            _ => self.local(handle) == Some(counter),
        }
    }

    /// Whether an expression is the same in every round, but for the counter.
    fn stays(
        &self,
        handle: Handle<Expression>,
        counter: Handle<LocalVariable>,
        fresh: &Expressions,
        written: &Locals,
    ) -> bool {
        let stays = |part| self.stays(part, counter, fresh, written);
        match *self.expression(handle) {
            Expression::Literal(_)
            | Expression::Constant(_)
            | Expression::ZeroValue(_)
            | Expression::FunctionArgument(_) => true,
            // Evaluated before the loop.
            Expression::Load { .. }
            | Expression::Access { .. }
            | Expression::AccessIndex { .. }
            | Expression::Binary { .. }
            | Expression::Unary { .. }
            | Expression::Select { .. }
            | Expression::Math { .. }
            | Expression::As { .. }
            | Expression::ArrayLength(_)
                if !fresh.contains(&handle) =>
            {
                true
            }
            Expression::CallResult(_) | Expression::WorkGroupUniformLoadResult { .. } => true,
            Expression::Load { pointer } => self.place_stays(pointer, counter, fresh, written),
            Expression::AccessIndex { base, .. } => stays(base),
            Expression::Binary { left, right, .. } => stays(left) && stays(right),
            Expression::Unary { expr, .. } | Expression::As { expr, .. } => stays(expr),
            Expression::Select { condition, accept, reject } => {
                stays(condition) && stays(accept) && stays(reject)
            }
            Expression::Math { arg, arg1, arg2, arg3, .. } => {
                stays(arg) && [arg1, arg2, arg3].into_iter().flatten().all(stays)
            }
            Expression::ArrayLength(_) => true,
            _ => false,
        }
    }

    /// Whether what lies at a place is the same in every round.
    fn place_stays(
        &self,
        pointer: Handle<Expression>,
        counter: Handle<LocalVariable>,
        fresh: &Expressions,
        written: &Locals,
    ) -> bool {
        match *self.expression(pointer) {
            Expression::LocalVariable(local) => local == counter || !written.contains(&local),
            Expression::GlobalVariable(global) => {
                match self.module.global_variables[global].space {
                    AddressSpace::Uniform => true,
                    AddressSpace::Storage { access } => !access.contains(StorageAccess::STORE),
                    _ => false,
                }
            }
            Expression::AccessIndex { base, .. } => self.place_stays(base, counter, fresh, written),
            Expression::Access { base, index } => {
                self.place_stays(base, counter, fresh, written)
                    && self.stays(index, counter, fresh, written)
            }
            _ => false,
        }
    }

    /// The variables that a block writes to, or lets another function write to.
    fn written(&self, block: &Block, locals: &mut Locals) -> Result<(), &'static str> {
        for statement in block {
            match statement {
                Statement::Block(block) => self.written(block, locals)?,
                Statement::If { accept, reject, .. } => {
                    self.written(accept, locals)?;
                    self.written(reject, locals)?;
                }
                Statement::Switch { cases, .. } => {
                    cases.iter().try_for_each(|case| self.written(&case.body, locals))?;
                }
                Statement::Loop { body, continuing, .. } => {
                    self.written(body, locals)?;
                    self.written(continuing, locals)?;
                }
                Statement::Store { pointer, .. } => locals.extend(self.root(*pointer)),
                Statement::Call { arguments, .. } => {
                    locals.extend(arguments.iter().filter_map(|argument| self.root(*argument)));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The variable that a pointer points into.
    fn root(&self, pointer: Handle<Expression>) -> Option<Handle<LocalVariable>> {
        match *self.expression(pointer) {
            Expression::LocalVariable(local) => Some(local),
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => {
                self.root(base)
            }
            _ => None,
        }
    }
}
