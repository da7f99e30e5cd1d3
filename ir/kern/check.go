package kern

import (
	"errors"
	"fmt"
	"slices"

	"reprise/ir/dtype"
)

var errArity = errors.New("wrong number of operands")

// opNames are the names of the text form, in the order of the constants.
func (op Op) String() string {
	names := [...]string{"const", "var", "load", "local", "neg", "abs", "add", "sub", "mul", "div", "rem", "fma", "fmaflush", "sqrt",
		"floor", "ceil", "rint", "trunc", "min", "max", "and", "or", "xor", "not", "shl", "shr", "popcnt", "clz", "mulhi",
		"eq", "ne", "lt", "le", "gt", "ge", "select", "convert", "bitcast", "philox", "random"}
	if int(op) < len(names) {
		return names[op]
	}
	return fmt.Sprintf("op%d", int(op))
}

func (k RedKind) String() string {
	names := [...]string{"sum", "prod", "max", "min", "and", "or", "xor"}
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("red%d", int(k))
}

// checkOp checks the operand types of one operation (loads and variables apart).
func checkOp(e *Expr) error {
	bad := func(format string, args ...any) error {
		types := make([]dtype.Type, len(e.Args))
		for i, a := range e.Args {
			types[i] = a.DType
		}
		return fmt.Errorf("%v %v → %v: %s", e.Op, types, e.DType, fmt.Sprintf(format, args...))
	}
	arity, ok := opArity(e.Op)
	if !ok {
		return bad("unknown operation")
	}
	if len(e.Args) != arity {
		return bad("%v", errArity)
	}
	if arity == 0 {
		return nil
	}
	t := e.Args[0].DType
	arith := t == dtype.F32 || t == dtype.F64
	logic := t.IsInt() || t == dtype.Bool
	same := func() error {
		for _, a := range e.Args {
			if a.DType != t {
				return bad("operands of different types")
			}
		}
		return nil
	}
	fits := false
	switch e.Op {
	case OpNeg, OpAbs, OpAdd, OpSub, OpMul, OpDiv, OpMin, OpMax:
		fits = arith || t.IsInt()
	case OpFma, OpSqrt, OpFloor, OpCeil, OpRint, OpTrunc:
		fits = arith
	case OpFmaFlush:
		fits = t == dtype.F32
	case OpRem, OpShl, OpShr, OpPopcnt, OpClz:
		fits = t.IsInt()
	case OpMulHi:
		fits = t == dtype.U32 || t == dtype.U64
	case OpAnd, OpOr, OpXor, OpNot:
		fits = logic
	case OpEq, OpNe, OpLt, OpLe, OpGt, OpGe:
		fits = arith || t.IsInt() || t == dtype.Bool && e.Op <= OpNe
		if fits && e.DType != dtype.Bool {
			return bad("want a bool result")
		}
		if !fits {
			return bad("no such operation on this type")
		}
		return same()
	case OpSelect:
		if t != dtype.Bool || e.Args[1].DType != e.DType || e.Args[2].DType != e.DType {
			return bad("want bool and two values of the result's type")
		}
		return nil
	case OpConvert, OpBitcast:
		if t == dtype.Key || e.DType == dtype.Key || t == dtype.Invalid || e.DType == dtype.Invalid {
			return bad("no such conversion")
		}
		if e.Op == OpBitcast && (t.Size() != e.DType.Size() || (t == dtype.Bool) != (e.DType == dtype.Bool)) {
			return bad("bitcast to another width")
		}
		return nil
	case OpPhilox, OpRandom:
		for i, a := range e.Args {
			w := dtype.U32
			if e.Op == OpRandom && i >= 4 {
				w = dtype.I64
			}
			if a.DType != w {
				return bad("operand %d: want %v", i, w)
			}
		}
		if e.DType != dtype.U32 {
			return bad("want a u32 result")
		}
		return nil
	}
	if !fits {
		return bad("no such operation on this type")
	}
	if e.DType != t {
		return bad("result type differs from the operands'")
	}
	return same()
}

// opArity is the number of operands; loads are checked elsewhere.
func opArity(op Op) (n int, ok bool) {
	switch op {
	case OpConst, OpVar:
		return 0, true
	case OpLoad, OpLocal, OpNeg, OpAbs, OpSqrt, OpFloor, OpCeil, OpRint, OpTrunc, OpNot, OpPopcnt, OpClz, OpConvert, OpBitcast:
		return 1, true
	case OpFma, OpFmaFlush, OpSelect:
		return 3, true
	case OpPhilox, OpRandom:
		return 6, true
	}
	return 2, op < numOps
}

// Check reports what is wrong with a kernel: operand types, parameters out of
// range or written without leave, variables that are read before they are set on
// every path, per-lane values where a uniform one is needed, statements that may
// not stand inside a strip.
func Check(k *Kernel) error {
	c := newChecker(k.Params)
	c.flush = k.Flush
	fail := func(err error) error { return fmt.Errorf("kernel %q: %w", k.Name, err) }
	if k.Tiles < 0 || k.Tile == nil || k.Tile.DType != dtype.I64 {
		return fail(errors.New("want a tile variable of type i64 and a count ≥ 0"))
	}
	for i, p := range k.Params {
		if p.DType == dtype.Invalid || p.DType == dtype.Key || p.Len < 0 {
			return fail(fmt.Errorf("parameter %d %q: type %v, length %d (a key is passed as 4 u32)", i, p.Name, p.DType, p.Len))
		}
	}
	c.defined[k.Tile] = true
	if err := c.body(k.Body); err != nil {
		return fail(err)
	}
	return nil
}

// CheckContract is Check for what a contraction computes before and after its chains: the body of
// the epilogue, a strip body over e.N, and those of prologues, whose last parameter is the block.
func CheckContract(c *Contract) error {
	if e := c.Epilogue; e != nil {
		ch := newChecker(c.Params, e.Batch, e.M)
		ch.strip = &Strip{Var: e.N}
		ch.defined[e.N], ch.lane[e.N] = true, true
		ch.defined[e.Acc], ch.lane[e.Acc] = true, true
		if err := ch.body(e.Body); err != nil {
			return fmt.Errorf("epilogue: %w", err)
		}
	}
	for i, p := range []*Prologue{c.ProA, c.ProB} {
		if p == nil {
			continue
		}
		t := [...]dtype.Type{c.A, c.B}[i]
		ch := newChecker(append(append([]Param{}, c.Params...), Param{Name: "block", DType: t, Writes: true}), p.Batch, p.Lo, p.Hi, p.Base, p.N, p.Ld)
		if err := ch.body(p.Body); err != nil {
			return fmt.Errorf("prologue of %s: %w", "AB"[i:i+1], err)
		}
		for j := range c.Params {
			if stores(p.Body, j) {
				return fmt.Errorf("prologue of %s: it writes parameter %q, and may run any number of times", "AB"[i:i+1], c.Params[j].Name)
			}
		}
		if stores(p.Body, -1) {
			return fmt.Errorf("prologue of %s: it has a local array", "AB"[i:i+1])
		}
	}
	return nil
}

// stores tells whether statements write a parameter; -1: a local array.
func stores(stmts []Stmt, param int) bool {
	for _, s := range stmts {
		switch s := s.(type) {
		case *Store:
			if s.Param == param {
				return true
			}
		case *StoreLocal:
			if param < 0 {
				return true
			}
		case *For:
			if stores(s.Body, param) {
				return true
			}
		case *While:
			if stores(s.Pre, param) || stores(s.Body, param) {
				return true
			}
		case *If:
			if stores(s.Then, param) || stores(s.Else, param) {
				return true
			}
		case *Strip:
			if stores(s.Body, param) {
				return true
			}
		}
	}
	return false
}

func newChecker(params []Param, defined ...*Var) *checker {
	c := &checker{params: params, defined: map[*Var]bool{}, lane: map[*Var]bool{}, seen: map[*Expr]bool{}}
	for _, v := range defined {
		if v != nil {
			c.defined[v] = true
		}
	}
	return c
}

type checker struct {
	params  []Param
	defined map[*Var]bool
	lane    map[*Var]bool // variables with one value per lane
	strip   *Strip        // the strip around, or nil
	seen    map[*Expr]bool
	flush   bool // Kernel.Flush
}

func (c *checker) body(stmts []Stmt) error {
	for _, s := range stmts {
		if err := c.stmt(s); err != nil {
			return err
		}
	}
	return nil
}

// copyDefined is the state to return to after a body that may not run.
func (c *checker) copyDefined() map[*Var]bool {
	m := make(map[*Var]bool, len(c.defined))
	for v := range c.defined {
		m[v] = true
	}
	return m
}

func (c *checker) stmt(s Stmt) error {
	switch s := s.(type) {
	case *Assign:
		if err := c.typed(s.Value, s.Var.DType, "value of "+s.Var.Name); err != nil {
			return err
		}
		if c.strip != nil {
			if c.defined[s.Var] && !c.lane[s.Var] {
				return fmt.Errorf("strip assigns %q, which has one value for all lanes", s.Var.Name)
			}
			c.lane[s.Var] = true
		} else if c.lane[s.Var] {
			return fmt.Errorf("%q has one value per lane and is assigned outside of a strip", s.Var.Name)
		}
		c.defined[s.Var] = true
	case *Store:
		if s.Param < 0 || s.Param >= len(c.params) {
			return fmt.Errorf("store to parameter %d of %d", s.Param, len(c.params))
		}
		p := c.params[s.Param]
		if !p.Writes {
			return fmt.Errorf("store to parameter %q, which is only read", p.Name)
		}
		return c.store(s.Index, s.Value, s.Cond, p.DType)
	case *StoreLocal:
		return c.store(s.Index, s.Value, s.Cond, s.Local.DType)
	case *For:
		for _, x := range []*Expr{s.Lo, s.Hi} {
			if err := c.typed(x, dtype.I64, "loop bound"); err != nil {
				return err
			}
			if c.strip != nil && c.perLane(x, map[*Expr]bool{}) {
				return fmt.Errorf("loop over %q inside a strip: its bounds differ between lanes", s.Var.Name)
			}
		}
		if s.Step <= 0 || s.Var.DType != dtype.I64 {
			return fmt.Errorf("loop over %q: want an i64 variable and a step > 0", s.Var.Name)
		}
		if c.strip == nil {
			delete(c.lane, s.Var)
		} else if c.lane[s.Var] {
			return fmt.Errorf("loop variable %q also has one value per lane", s.Var.Name)
		}
		before := c.copyDefined()
		c.defined[s.Var] = true
		if err := c.body(s.Body); err != nil {
			return err
		}
		lo, ok1 := s.Lo.IsConst()
		hi, ok2 := s.Hi.IsConst()
		if !ok1 || !ok2 || int64(lo) >= int64(hi) {
			c.defined = before
		}
		delete(c.defined, s.Var)
	case *While:
		if c.strip != nil {
			return errors.New("while inside a strip")
		}
		if err := c.body(s.Pre); err != nil {
			return err
		}
		if err := c.typed(s.Cond, dtype.Bool, "condition"); err != nil {
			return err
		}
		before := c.copyDefined()
		if err := c.body(s.Body); err != nil {
			return err
		}
		c.defined = before
	case *If:
		if c.strip != nil {
			return errors.New("if inside a strip")
		}
		if err := c.typed(s.Cond, dtype.Bool, "condition"); err != nil {
			return err
		}
		before := c.copyDefined()
		if err := c.body(s.Then); err != nil {
			return err
		}
		then := c.defined
		c.defined = before
		if err := c.body(s.Else); err != nil {
			return err
		}
		for v := range c.defined {
			if !then[v] {
				delete(c.defined, v)
			}
		}
	case *Strip:
		if c.strip != nil {
			return errors.New("strip inside a strip")
		}
		if err := c.typed(s.N, dtype.I64, "strip length"); err != nil {
			return err
		}
		if s.Var.DType != dtype.I64 {
			return fmt.Errorf("strip over %q: want an i64 variable", s.Var.Name)
		}
		before := c.copyDefined()
		c.strip = s
		c.defined[s.Var], c.lane[s.Var] = true, true
		if err := c.body(s.Body); err != nil {
			return err
		}
		for _, r := range s.Reds {
			if err := c.typed(r.Value, r.Var.DType, "reduced value of "+r.Var.Name); err != nil {
				return err
			}
			t := r.Var.DType
			bitwise := r.Kind == RedAnd || r.Kind == RedOr || r.Kind == RedXor
			if bitwise && !t.IsInt() && t != dtype.Bool || !bitwise && t != dtype.F32 && t != dtype.F64 && !t.IsInt() {
				return fmt.Errorf("reduction %v of type %v", r.Kind, t)
			}
		}
		c.strip, c.defined = nil, before
		for _, r := range s.Reds {
			if c.lane[r.Var] {
				return fmt.Errorf("%q has one value per lane and receives a reduction", r.Var.Name)
			}
			c.defined[r.Var] = true
		}
	default:
		return fmt.Errorf("unknown statement %T", s)
	}
	return nil
}

func (c *checker) store(index, value, cond *Expr, t dtype.Type) error {
	if err := c.typed(index, dtype.I64, "index"); err != nil {
		return err
	}
	if err := c.typed(value, t, "stored value"); err != nil {
		return err
	}
	if cond != nil {
		return c.typed(cond, dtype.Bool, "condition")
	}
	return nil
}

func (c *checker) typed(x *Expr, t dtype.Type, what string) error {
	if x == nil {
		return fmt.Errorf("%s is missing", what)
	}
	if x.DType != t {
		return fmt.Errorf("%s has type %v, want %v", what, x.DType, t)
	}
	clear(c.seen)
	return c.expr(x)
}

func (c *checker) expr(x *Expr) error {
	if c.seen[x] {
		return nil
	}
	c.seen[x] = true
	for _, a := range x.Args {
		if a == nil {
			return fmt.Errorf("%v: operand is missing", x.Op)
		}
		if err := c.expr(a); err != nil {
			return err
		}
	}
	switch x.Op {
	case OpVar:
		if x.Var.DType != x.DType {
			return fmt.Errorf("variable %q is read as %v", x.Var.Name, x.DType)
		}
		if !c.defined[x.Var] {
			return fmt.Errorf("variable %q is read before it is set", x.Var.Name)
		}
	case OpLoad:
		if x.Param < 0 || x.Param >= len(c.params) {
			return fmt.Errorf("load from parameter %d of %d", x.Param, len(c.params))
		}
		if p := c.params[x.Param]; p.DType != x.DType {
			return fmt.Errorf("parameter %q of type %v is read as %v", p.Name, p.DType, x.DType)
		}
		if len(x.Args) != 1 && len(x.Args) != 3 || x.Args[0].DType != dtype.I64 ||
			len(x.Args) == 3 && (x.Args[1].DType != dtype.Bool || x.Args[2].DType != x.DType) {
			return errors.New("load: want an i64 index, then maybe a bool and a value")
		}
	case OpLocal:
		if len(x.Args) != 1 || x.Args[0].DType != dtype.I64 || x.Local.DType != x.DType {
			return errors.New("local: want an i64 index and the array's type")
		}
	default:
		if err := checkOp(x); err != nil {
			return err
		}
		if !c.flush && x.Op == OpFmaFlush || c.flush && computesFloats(x) {
			return fmt.Errorf("%v: a kernel computes with denormals as zero everywhere or nowhere", x.Op)
		}
	}
	return nil
}

// computesFloats tells whether the treatment of denormals reaches an operation other than OpFmaFlush.
// Conversions between f32 and bf16 are arithmetic on bits.
func computesFloats(x *Expr) bool {
	float := slices.ContainsFunc(x.Args, func(a *Expr) bool { return a.DType.IsFloat() }) || x.DType.IsFloat()
	switch x.Op {
	case OpFmaFlush, OpSelect, OpBitcast, OpConst:
		return false
	case OpConvert:
		bits := func(t dtype.Type) bool { return t == dtype.F32 || t == dtype.BF16 || !t.IsFloat() }
		return float && !(bits(x.DType) && bits(x.Args[0].DType) && x.DType.IsFloat() == x.Args[0].DType.IsFloat())
	}
	return float
}

// perLane tells whether a value may differ between the lanes of the strip around.
func (c *checker) perLane(x *Expr, seen map[*Expr]bool) bool {
	if seen[x] {
		return false
	}
	seen[x] = true
	if x.Op == OpVar {
		return c.lane[x.Var]
	}
	for _, a := range x.Args {
		if c.perLane(a, seen) {
			return true
		}
	}
	return false
}
