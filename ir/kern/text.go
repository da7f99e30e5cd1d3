package kern

import (
	"fmt"
	"slices"
	"strings"

	"reprise/ir/dtype"
)

// Text prints a kernel. Names are left out (variables, locals and parameters are
// numbered in the order in which they appear), so kernels that do the same in the
// same way have the same text and are compiled once. A value that a statement uses
// more than once is named and printed once.
func (k *Kernel) Text() string {
	return k.text(&printer{vars: map[*Var]int{}, locals: map[*Local]int{}})
}

// Own is what kernels of one shape may differ in.
type Own struct {
	IDs     []uint32 // of random ops, each once, in order of appearance
	Numbers []*Expr  // constants of f32 and f64, likewise
}

// Shape is Text with the ids of random ops and floating-point constants replaced by numbers in order of
// appearance, and these: kernels that differ only in whose random words they draw, or in what they
// multiply by, have one shape.
func (k *Kernel) Shape() (text string, own Own) {
	p := shapePrinter()
	text = k.text(p)
	return text, p.own
}

func shapePrinter() *printer {
	return &printer{vars: map[*Var]int{}, locals: map[*Local]int{}, numbers: map[*Expr]int{}}
}

func (k *Kernel) text(p *printer) string {
	mode := ""
	if k.Flush {
		mode = " flush"
	}
	p.line("kernel tiles=%d%s {", k.Tiles, mode)
	p.depth++
	for i, q := range k.Params {
		mode := "in"
		if q.Writes {
			mode = "out"
		}
		p.line("p%d: %s %v[%d]", i, mode, q.DType, q.Len)
	}
	p.line("tile %s", p.variable(k.Tile))
	p.body(k.Body)
	p.depth--
	p.line("}")
	return p.buf.String()
}

// Text prints a contraction: its sizes, then what is computed before and after it.
func (c *Contract) Text() string {
	return c.text(&printer{vars: map[*Var]int{}, locals: map[*Local]int{}})
}

// Shape is Text with what a contraction has of its own left out, and this, as for kernels.
func (c *Contract) Shape() (text string, own Own) {
	p := shapePrinter()
	text = c.text(p)
	return text, p.own
}

func (c *Contract) text(p *printer) string {
	p.line("contract %v × %v in %v to %v batch=%v m=%v n=%v k=%v len=%d,%d,%d {", c.A, c.B, c.Acc, c.Out, c.Batch, c.M, c.N, c.K, c.LenA, c.LenB, c.LenC)
	p.depth++
	for i, q := range c.Params {
		mode := "in"
		if q.Writes {
			mode = "out"
		}
		p.line("p%d: %s %v[%d]", i, mode, q.DType, q.Len)
	}
	part := func(head string, args []*Var, body []Stmt) {
		for i, v := range args {
			if i == 0 {
				head += "("
			} else {
				head += ", "
			}
			head += p.variable(v)
		}
		p.block(head+")", body)
	}
	for i, pro := range []*Prologue{c.ProA, c.ProB} {
		if pro != nil {
			along := "mn"[i : i+1]
			if pro.AlongK {
				along = "k"
			}
			part(fmt.Sprintf("prologue %s along %s ", "ab"[i:i+1], along), []*Var{pro.Batch, pro.Lo, pro.Hi, pro.Base, pro.N, pro.Ld}, pro.Body)
		}
	}
	if e := c.Epilogue; e != nil {
		part("epilogue ", []*Var{e.Batch, e.M, e.N, e.Acc}, e.Body)
	}
	p.depth--
	p.line("}")
	return p.buf.String()
}

type printer struct {
	buf    strings.Builder
	depth  int
	vars   map[*Var]int
	locals map[*Local]int
	// Of shapes: what they leave out. numbers is nil where nothing is.
	own     Own
	numbers map[*Expr]int
}

func (p *printer) line(format string, args ...any) {
	p.buf.WriteString(strings.Repeat("  ", p.depth))
	fmt.Fprintf(&p.buf, format, args...)
	p.buf.WriteByte('\n')
}

// variable is a variable's number, with its type where it appears first.
func (p *printer) variable(v *Var) string {
	if v == nil {
		return "none"
	}
	n, ok := p.vars[v]
	if !ok {
		n = len(p.vars)
		p.vars[v] = n
		return fmt.Sprintf("v%d:%v", n, v.DType)
	}
	return fmt.Sprintf("v%d", n)
}

func (p *printer) local(l *Local) string {
	n, ok := p.locals[l]
	if !ok {
		n = len(p.locals)
		p.locals[l] = n
		return fmt.Sprintf("l%d:%v[%d]", n, l.DType, l.Len)
	}
	return fmt.Sprintf("l%d", n)
}

func (p *printer) body(stmts []Stmt) {
	for _, s := range stmts {
		p.stmt(s)
	}
}

func (p *printer) block(head string, stmts []Stmt) {
	p.line("%s {", head)
	p.depth++
	p.body(stmts)
	p.depth--
	p.line("}")
}

func (p *printer) stmt(s Stmt) {
	switch s := s.(type) {
	case *Assign:
		x := p.exprs(s.Value)
		p.line("%s = %s", p.variable(s.Var), x[0])
	case *Store:
		p.store(fmt.Sprintf("p%d", s.Param), s.Index, s.Value, s.Cond)
	case *StoreLocal:
		p.store(p.local(s.Local), s.Index, s.Value, s.Cond)
	case *For:
		x := p.exprs(s.Lo, s.Hi)
		p.block(fmt.Sprintf("for %s = %s .. %s step %d", p.variable(s.Var), x[0], x[1], s.Step), s.Body)
	case *While:
		p.block("while", s.Pre)
		x := p.exprs(s.Cond)
		p.block("do "+x[0], s.Body)
	case *If:
		x := p.exprs(s.Cond)
		p.block("if "+x[0], s.Then)
		if len(s.Else) > 0 {
			p.block("else", s.Else)
		}
	case *Strip:
		x := p.exprs(s.N)
		p.line("strip %s < %s {", p.variable(s.Var), x[0])
		p.depth++
		p.body(s.Body)
		for _, r := range s.Reds {
			x := p.exprs(r.Value)
			p.line("reduce %s = %v %s", p.variable(r.Var), r.Kind, x[0])
		}
		p.depth--
		p.line("}")
	}
}

func (p *printer) store(to string, index, value, cond *Expr) {
	if cond == nil {
		x := p.exprs(index, value)
		p.line("%s[%s] = %s", to, x[0], x[1])
		return
	}
	x := p.exprs(index, value, cond)
	p.line("%s[%s] = %s if %s", to, x[0], x[1], x[2])
}

// exprs prints the shared values of a statement on lines of their own and returns
// the texts of its roots.
func (p *printer) exprs(roots ...*Expr) []string {
	uses := map[*Expr]int{}
	var count func(e *Expr)
	count = func(e *Expr) {
		if uses[e]++; uses[e] == 1 {
			for _, a := range e.Args {
				count(a)
			}
		}
	}
	for _, r := range roots {
		count(r)
	}
	names := map[*Expr]string{}
	var text func(e *Expr) string
	text = func(e *Expr) string {
		if n, ok := names[e]; ok {
			return n
		}
		t := p.expr(e, text)
		if uses[e] > 1 && len(e.Args) > 0 {
			n := fmt.Sprintf("%%%d", len(names))
			p.line("%s = %s", n, t)
			names[e] = n
			return n
		}
		return t
	}
	out := make([]string, len(roots))
	for i, r := range roots {
		out[i] = text(r)
	}
	return out
}

func (p *printer) expr(e *Expr, text func(*Expr) string) string {
	switch e.Op {
	case OpConst:
		return p.constant(e)
	case OpVar:
		return p.variable(e.Var)
	}
	args := make([]string, len(e.Args))
	for i, a := range e.Args {
		args[i] = text(a)
	}
	list := strings.Join(args, ", ")
	switch e.Op {
	case OpLoad:
		return fmt.Sprintf("p%d[%s]", e.Param, list)
	case OpLocal:
		return fmt.Sprintf("%s[%s]", p.local(e.Local), list)
	case OpConvert, OpBitcast:
		return fmt.Sprintf("%v.%v(%s)", e.Op, e.DType, list)
	case OpRandom:
		if p.numbers != nil {
			i := slices.Index(p.own.IDs, uint32(e.Bits))
			if i < 0 {
				i = len(p.own.IDs)
				p.own.IDs = append(p.own.IDs, uint32(e.Bits))
			}
			return fmt.Sprintf("%v.#%d(%s)", e.Op, i, list)
		}
		return fmt.Sprintf("%v.%d(%s)", e.Op, e.Bits, list)
	case OpPhilox:
		return fmt.Sprintf("%v.%d(%s)", e.Op, e.Bits, list)
	}
	return fmt.Sprintf("%v(%s)", e.Op, list)
}

func (p *printer) constant(e *Expr) string {
	if p.numbers != nil && (e.DType == dtype.F32 || e.DType == dtype.F64) {
		i, ok := p.numbers[e]
		if !ok {
			i = len(p.own.Numbers)
			p.numbers[e] = i
			p.own.Numbers = append(p.own.Numbers, e)
		}
		return fmt.Sprintf("#%d:%v", i, e.DType)
	}
	switch {
	case e.DType == dtype.Bool:
		return fmt.Sprint(e.Bits != 0)
	case e.DType == dtype.F32 && f32(e.Bits) == f32(e.Bits):
		return fmt.Sprintf("%x:f32", f32(e.Bits))
	case e.DType == dtype.F64 && f64(e.Bits) == f64(e.Bits):
		return fmt.Sprintf("%x:f64", f64(e.Bits))
	case e.DType.IsSigned():
		return fmt.Sprintf("%d:%v", signed(e.DType, e.Bits), e.DType)
	}
	return fmt.Sprintf("0x%x:%v", e.Bits, e.DType)
}
