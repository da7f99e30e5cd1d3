package kern

import (
	"encoding/binary"
	"fmt"
	"math"

	"reprise/ir/dtype"
)

// Run interprets tiles lo … hi-1 of a kernel, one lane after the other. bufs are the
// parameters' bytes, little endian. The kernel has passed Check. An access outside of a
// buffer is an error; what was stored before it stays.
func Run(k *Kernel, bufs [][]byte, lo, hi int64) (err error) {
	if len(bufs) != len(k.Params) {
		return fmt.Errorf("kernel %q: %d buffers for %d parameters", k.Name, len(bufs), len(k.Params))
	}
	for i, p := range k.Params {
		if int64(len(bufs[i])) != p.Len*p.DType.Size() {
			return fmt.Errorf("kernel %q: parameter %q has %d bytes, want %d of %v", k.Name, p.Name, len(bufs[i]), p.Len, p.DType)
		}
	}
	defer func() {
		if r := recover(); r != nil {
			fault, ok := r.(fault)
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("kernel %q: %s", k.Name, string(fault))
		}
	}()
	m := &machine{k: k, bufs: bufs, vars: map[*Var]uint64{}, progs: map[*Expr]*prog{}}
	for t := lo; t < hi; t++ {
		m.locals = map[*Local][]byte{}
		m.vars[k.Tile] = uint64(t)
		m.body(k.Body)
	}
	return nil
}

// fault is the panic that leaves the interpreter on a bad access.
type fault string

type machine struct {
	k      *Kernel
	bufs   [][]byte
	vars   map[*Var]uint64
	locals map[*Local][]byte
	progs  map[*Expr]*prog
}

// prog is an expression in evaluation order, each shared value once.
type prog struct {
	nodes []*Expr
	args  [][]int
	slots []uint64
}

func compile(root *Expr) *prog {
	p := &prog{}
	index := map[*Expr]int{}
	var visit func(e *Expr) int
	visit = func(e *Expr) int {
		if i, ok := index[e]; ok {
			return i
		}
		args := make([]int, len(e.Args))
		for i, a := range e.Args {
			args[i] = visit(a)
		}
		p.nodes = append(p.nodes, e)
		p.args = append(p.args, args)
		index[e] = len(p.nodes) - 1
		return len(p.nodes) - 1
	}
	visit(root)
	p.slots = make([]uint64, len(p.nodes))
	return p
}

func (m *machine) eval(x *Expr) uint64 {
	p := m.progs[x]
	if p == nil {
		p = compile(x)
		m.progs[x] = p
	}
	var a [6]uint64
	for i, e := range p.nodes {
		for j, s := range p.args[i] {
			a[j] = p.slots[s]
		}
		switch e.Op {
		case OpConst:
			p.slots[i] = e.Bits
		case OpVar:
			p.slots[i] = m.vars[e.Var]
		case OpLoad:
			if len(e.Args) == 3 && a[1] == 0 {
				p.slots[i] = a[2]
				break
			}
			p.slots[i] = load(m.bufs[e.Param], e.DType, m.at(int64(a[0]), m.k.Params[e.Param].Len, m.k.Params[e.Param].Name))
		case OpLocal:
			p.slots[i] = load(m.local(e.Local), e.DType, m.at(int64(a[0]), e.Local.Len, e.Local.Name))
		default:
			p.slots[i] = evalOp(e, a[:len(e.Args)])
		}
	}
	return p.slots[len(p.slots)-1]
}

func (m *machine) at(i, n int64, name string) int64 {
	if i < 0 || i >= n {
		panic(fault(fmt.Sprintf("element %d of %q, which has %d (tile %d)", i, name, n, m.vars[m.k.Tile])))
	}
	return i
}

// local is a scratch array, filled at a tile's start with what should not be read.
func (m *machine) local(l *Local) []byte {
	b, ok := m.locals[l]
	if !ok {
		b = make([]byte, l.Len*l.DType.Size())
		for i := range b {
			b[i] = 0xa5
		}
		m.locals[l] = b
	}
	return b
}

func load(b []byte, t dtype.Type, i int64) uint64 {
	switch b = b[i*t.Size():]; t.Size() {
	case 1:
		if t == dtype.Bool {
			return truth(b[0] != 0)
		}
		return uint64(b[0])
	case 2:
		return uint64(binary.LittleEndian.Uint16(b))
	case 4:
		return uint64(binary.LittleEndian.Uint32(b))
	}
	return binary.LittleEndian.Uint64(b)
}

func store(b []byte, t dtype.Type, i int64, x uint64) {
	switch b = b[i*t.Size():]; t.Size() {
	case 1:
		b[0] = byte(x)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(x))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(x))
	default:
		binary.LittleEndian.PutUint64(b, x)
	}
}

func (m *machine) body(stmts []Stmt) {
	for _, s := range stmts {
		m.stmt(s)
	}
}

func (m *machine) stmt(s Stmt) {
	switch s := s.(type) {
	case *Assign:
		m.vars[s.Var] = m.eval(s.Value)
	case *Store:
		if s.Cond != nil && m.eval(s.Cond) == 0 {
			return
		}
		p := m.k.Params[s.Param]
		i, x := m.at(int64(m.eval(s.Index)), p.Len, p.Name), m.eval(s.Value)
		store(m.bufs[s.Param], p.DType, i, x)
	case *StoreLocal:
		if s.Cond != nil && m.eval(s.Cond) == 0 {
			return
		}
		i, x := m.at(int64(m.eval(s.Index)), s.Local.Len, s.Local.Name), m.eval(s.Value)
		store(m.local(s.Local), s.Local.DType, i, x)
	case *For:
		lo, hi := int64(m.eval(s.Lo)), int64(m.eval(s.Hi))
		for i := lo; i < hi; i += s.Step {
			m.vars[s.Var] = uint64(i)
			m.body(s.Body)
		}
	case *While:
		for m.body(s.Pre); m.eval(s.Cond) != 0; m.body(s.Pre) {
			m.body(s.Body)
		}
	case *If:
		if m.eval(s.Cond) != 0 {
			m.body(s.Then)
		} else {
			m.body(s.Else)
		}
	case *Strip:
		m.strip(s)
	}
}

func (m *machine) strip(s *Strip) {
	parts := make([][Lanes]uint64, len(s.Reds))
	for r, red := range s.Reds {
		for l := range Lanes {
			parts[r][l] = red.Kind.Start(red.Var.DType)
		}
	}
	n := int64(m.eval(s.N))
	for i := range n {
		m.vars[s.Var] = uint64(i)
		m.body(s.Body)
		for r, red := range s.Reds {
			parts[r][i%Lanes] = join(red, parts[r][i%Lanes], m.eval(red.Value))
		}
	}
	for r, red := range s.Reds {
		for w := Lanes / 2; w > 0; w /= 2 {
			for l := range w {
				parts[r][l] = join(red, parts[r][l], parts[r][l+w])
			}
		}
		m.vars[red.Var] = parts[r][0]
	}
}

// Op is the operation that joins two values of a reduction.
func (k RedKind) Op() Op {
	return [...]Op{OpAdd, OpMul, OpMax, OpMin, OpAnd, OpOr, OpXor}[k]
}

func join(r Red, x, y uint64) uint64 {
	v := &Expr{DType: r.Var.DType}
	return evalOp(&Expr{Op: r.Kind.Op(), DType: r.Var.DType, Args: []*Expr{v, v}}, []uint64{x, y})
}

// Start is the bits of a partial of type t before its first element.
func (k RedKind) Start(t dtype.Type) uint64 {
	switch k {
	case RedProd:
		return One(t).Bits
	case RedMax, RedMin:
		sign := 1
		if k == RedMax {
			sign = -1
		}
		switch {
		case t == dtype.F32:
			return b32(float32(math.Inf(sign)))
		case t == dtype.F64:
			return b64(math.Inf(sign))
		case t.IsSigned() && k == RedMax:
			return mask(t)>>1 + 1
		case t.IsSigned():
			return mask(t) >> 1
		case k == RedMax:
			return 0
		}
		return mask(t)
	case RedAnd:
		return mask(t)
	}
	return 0
}

// Operand interprets the prologue of operand side (0: A, 1: B) of a contraction and gives the
// operand as it would lie in memory. bufs are those of c.Params. The contraction has passed
// CheckContract.
func (c *Contract) Operand(side int, bufs [][]byte) ([]byte, error) {
	p, t, n, own := c.ProA, c.A, c.LenA, c.M
	stride := func(a Axis) int64 { return a.StrideA }
	if side == 1 {
		p, t, n, own = c.ProB, c.B, c.LenB, c.N
		stride = func(a Axis) int64 { return a.StrideB }
	}
	// walk lists the offsets of axes, the last fastest.
	walk := func(axes ...Axis) []int64 {
		at := []int64{0}
		for _, a := range axes {
			var next []int64
			for _, o := range at {
				for i := range a.Size {
					next = append(next, o+i*stride(a))
				}
			}
			at = next
		}
		return at
	}
	rows, cols := walk(own), walk(c.K...)
	if !p.AlongK {
		rows, cols = cols, rows
	}
	const height, width = 5, 2 * Lanes
	block := make([]byte, height*width*t.Size())
	params := append(append([]Param{}, c.Params...), Param{Name: "block", DType: t, Len: height * width, Writes: true})
	out := make([]byte, n*t.Size())
	for batch, off := range walk(c.Batch...) {
		for r := int64(0); r < int64(len(rows)); r += height {
			for base := int64(0); base < int64(len(cols)); base += width {
				h, w := min(height, int64(len(rows))-r), min(width, int64(len(cols))-base)
				k := &Kernel{Name: c.Name, Params: params, Tiles: 1, Tile: NewVar("tile", dtype.I64)}
				for _, x := range []struct {
					v *Var
					x int64
				}{{p.Batch, int64(batch)}, {p.Lo, r}, {p.Hi, r + h}, {p.Base, base / Lanes}, {p.N, w}, {p.Ld, width}} {
					k.Body = append(k.Body, Let(x.v, I64(x.x)))
				}
				k.Body = append(k.Body, p.Body...)
				if err := Run(k, append(append([][]byte{}, bufs...), block), 0, 1); err != nil {
					return nil, err
				}
				for i := range h {
					for j := range w {
						store(out, t, off+rows[r+i]+cols[base+j], load(block, t, i*width+j))
					}
				}
			}
		}
	}
	return out, nil
}
