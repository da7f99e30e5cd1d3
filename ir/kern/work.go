package kern

import (
	"slices"

	"reprise/ir/dtype"
)

// Work is what a kernel does in a run, counted from its text and so a function of shape alone. It serves
// estimates: loops run as often as their bounds say in the middle tile, those whose bounds are data once,
// and of two branches whose condition is data each runs half of the time.
type Work struct {
	Lanes   float64 // operations of strips, loads and stores among them, for each lane; one on 8 bytes counts twice
	Divs    float64 // divisions and roots of strips, likewise
	Randoms float64 // random draws of strips, one for each lane
	Gathers float64 // lanes that strips load or store one by one
	Scalars float64 // operations that are not those of lanes: outside of strips, and once for each vector
	Blind   bool    // how often a loop runs is data
}

// Vector is the lanes in a register of the machine that work is counted for: strips run in whole ones.
const Vector = 16

// The operations that a conversion to and from bf16 takes, of which no machine has an instruction that rounds
// as it is asked to.
const (
	narrowOps = 7
	widenOps  = 2
)

// Times is the work done n times.
func (w Work) Times(n float64) Work {
	return Work{w.Lanes * n, w.Divs * n, w.Randoms * n, w.Gathers * n, w.Scalars * n, w.Blind}
}

func (w *Work) add(o Work) {
	w.Lanes += o.Lanes
	w.Divs += o.Divs
	w.Randoms += o.Randoms
	w.Gathers += o.Gathers
	w.Scalars += o.Scalars
	w.Blind = w.Blind || o.Blind
}

// Work is that of all tiles.
func (k *Kernel) Work() Work {
	c := newCounter()
	c.known[k.Tile] = k.Tiles / 2
	return c.block(k.Body).Times(float64(k.Tiles))
}

// Work is that of one element.
func (e *Epilogue) Work() Work {
	c := newCounter()
	c.strip = e.N
	c.varies[e.N], c.varies[e.Acc] = true, true
	return c.block(e.Body)
}

// StripWork is the work of a strip over v with this body on one lane.
func StripWork(v *Var, body []Stmt) Work {
	c := newCounter()
	c.strip = v
	c.varies[v] = true
	return c.block(body)
}

// counter counts work. A variable is known where its value follows from the shape.
type counter struct {
	known  map[*Var]int64
	strip  *Var          // of the strip around; nil outside of one
	varies map[*Var]bool // differ from lane to lane
	// Of the statement that is counted, by value: whether it varies, and the strides of indices.
	lanes   map[*Expr]bool
	strides map[*Expr]int64
}

func newCounter() *counter {
	return &counter{known: map[*Var]int64{}, varies: map[*Var]bool{}, lanes: map[*Expr]bool{}, strides: map[*Expr]int64{}}
}

func (c *counter) block(stmts []Stmt) Work {
	var w Work
	for _, s := range stmts {
		w.add(c.stmt(s))
	}
	return w
}

func (c *counter) stmt(s Stmt) Work {
	seen := map[*Expr]bool{}
	c.forget()
	switch s := s.(type) {
	case *Assign:
		w := c.exprs(seen, s.Value)
		if x, ok := c.value(s.Value); ok {
			c.known[s.Var] = x
		} else {
			delete(c.known, s.Var)
		}
		c.varies[s.Var] = c.lane(s.Value)
		return w
	case *Store:
		return c.store(seen, s.Index, s.Value, s.Cond)
	case *StoreLocal:
		return c.store(seen, s.Index, s.Value, s.Cond)
	case *For:
		return c.loop(s)
	case *While:
		w := c.block(s.Pre)
		w.add(c.exprs(seen, s.Cond))
		w.add(c.block(s.Body))
		w.Blind = true
		return w
	case *If:
		return c.branch(s)
	case *Strip:
		return c.stripe(s)
	}
	return Work{}
}

// forget begins a statement: variables may have changed.
func (c *counter) forget() {
	clear(c.lanes)
	clear(c.strides)
}

func (c *counter) store(seen map[*Expr]bool, index, value, cond *Expr) Work {
	w := c.exprs(seen, value, cond)
	w.add(c.access(index, c.lane(value) || c.lane(index)))
	return w
}

func (c *counter) branch(s *If) Work {
	x, ok := c.value(s.Cond)
	switch {
	case ok && x != 0:
		return c.block(s.Then)
	case ok:
		return c.block(s.Else)
	}
	w := c.block(s.Then)
	w.add(c.block(s.Else))
	return w.Times(0.5)
}

func (c *counter) stripe(s *Strip) Work {
	n, ok := c.value(s.N)
	if !ok {
		n = Lanes
	}
	c.strip = s.Var
	c.varies[s.Var] = true
	w := c.block(s.Body)
	for _, r := range s.Reds {
		c.forget()
		w.add(c.exprs(map[*Expr]bool{}, r.Value))
		w.Lanes++
	}
	c.strip = nil
	w = w.Times(float64((n + Vector - 1) / Vector * Vector))
	const start, tree = 5, 20 // of a strip; of a reduction's end
	w.Scalars += start + tree*float64(len(s.Reds))
	return w
}

// loop counts a loop by its middle round.
func (c *counter) loop(s *For) Work {
	lo, ok1 := c.value(s.Lo)
	hi, ok2 := c.value(s.Hi)
	rounds := int64(1)
	delete(c.known, s.Var)
	if ok1 && ok2 {
		rounds = max(0, (hi-lo+s.Step-1)/s.Step)
		c.known[s.Var] = lo + rounds/2*s.Step
	}
	c.varies[s.Var] = false
	if rounds == 0 {
		return Work{}
	}
	w := c.block(s.Body)
	w.add(c.once())
	w = w.Times(float64(rounds))
	w.Blind = w.Blind || !ok1 || !ok2
	delete(c.known, s.Var)
	return w
}

// once is an operation that all lanes share: in a strip it is done for each vector.
func (c *counter) once() Work {
	if c.strip != nil {
		return Work{Scalars: 1.0 / Vector}
	}
	return Work{Scalars: 1}
}

// exprs counts the operations of expressions, each shared one once. Those on indices are part of addresses.
func (c *counter) exprs(seen map[*Expr]bool, es ...*Expr) Work {
	var w Work
	for _, e := range es {
		if e == nil || seen[e] {
			continue
		}
		seen[e] = true
		vector := c.strip != nil && c.lane(e)
		switch {
		case e.Op == OpConst || e.Op == OpVar:
			continue
		case e.Op == OpLoad || e.Op == OpLocal:
			w.add(c.access(e.Args[0], vector))
			w.add(c.exprs(seen, e.Args[1:]...))
			continue
		case (e.Op == OpRandom || e.Op == OpPhilox) && vector:
			w.Randoms++
		case e.Op == OpRandom || e.Op == OpPhilox:
			w.Scalars += 60 // ten rounds
		case e.DType == dtype.I64:
		case !vector:
			w.add(c.once())
		case e.Op == OpDiv || e.Op == OpSqrt:
			w.Divs += registers(e)
		case e.Op == OpConvert && e.DType == dtype.BF16:
			w.Lanes += narrowOps
		case e.Op == OpConvert && e.Args[0].DType == dtype.BF16:
			w.Lanes += widenOps
		default:
			w.Lanes += registers(e)
		}
		w.add(c.exprs(seen, e.Args...))
	}
	return w
}

// registers is how many a vector of lanes takes in an operation.
func registers(e *Expr) float64 {
	if e.DType.Size() == 8 || len(e.Args) > 0 && e.Args[0].DType.Size() == 8 {
		return 2
	}
	return 1
}

// access counts a load or a store.
func (c *counter) access(index *Expr, vector bool) Work {
	switch {
	case c.strip == nil || !vector:
		return c.once()
	case c.lane(index) && c.stride(index) != 1:
		return Work{Gathers: 1}
	}
	return Work{Lanes: 1}
}

// uneven is the stride of lanes that are not evenly spaced.
const uneven = 1 << 40

// stride is by how much an index grows from lane to lane.
func (c *counter) stride(e *Expr) int64 {
	if !c.lane(e) {
		return 0
	}
	s, ok := c.strides[e]
	if !ok {
		s = c.spacing(e)
		c.strides[e] = s
	}
	return s
}

// spacing is stride for a value that varies.
func (c *counter) spacing(e *Expr) int64 {
	// What is known at two lanes is known for all but those behind a wrap.
	old, had := c.known[c.strip]
	c.known[c.strip] = 0
	a, ok1 := c.value(e)
	c.known[c.strip] = 1
	b, ok2 := c.value(e)
	if c.known[c.strip] = old; !had {
		delete(c.known, c.strip)
	}
	if ok1 && ok2 {
		return b - a
	}
	both := func(join func(a, b int64) int64) int64 {
		if a, b := c.stride(e.Args[0]), c.stride(e.Args[1]); a != uneven && b != uneven {
			return join(a, b)
		}
		return uneven
	}
	switch e.Op {
	case OpVar:
		if e.Var == c.strip {
			return 1
		}
	case OpAdd:
		return both(func(a, b int64) int64 { return a + b })
	case OpSub:
		return both(func(a, b int64) int64 { return a - b })
	case OpMul:
		for i := range 2 {
			if n, ok := c.value(e.Args[i]); ok {
				if a := c.stride(e.Args[1-i]); a != uneven {
					return n * a
				}
			}
		}
	case OpConvert:
		return c.stride(e.Args[0])
	}
	return uneven
}

// lane tells whether a value differs from lane to lane.
func (c *counter) lane(e *Expr) bool {
	if e.Op == OpVar {
		return c.varies[e.Var]
	}
	if x, ok := c.lanes[e]; ok {
		return x
	}
	x := slices.ContainsFunc(e.Args, c.lane)
	c.lanes[e] = x
	return x
}

// value is an integer or a truth that follows from the shape.
func (c *counter) value(e *Expr) (int64, bool) {
	v := c.eval(e, map[*Expr]known{})
	return v.x, v.ok
}

// known is a value that may be.
type known struct {
	x  int64
	ok bool
}

func (c *counter) eval(e *Expr, memo map[*Expr]known) known {
	switch {
	case !e.DType.IsInt() && e.DType != dtype.Bool:
		return known{}
	case e.Op == OpConst:
		return known{signed(e.DType, e.Bits), true}
	case e.Op == OpVar:
		x, ok := c.known[e.Var]
		return known{x, ok}
	case e.Op == OpLoad || e.Op == OpLocal || e.Op == OpRandom || e.Op == OpPhilox:
		return known{}
	}
	if v, ok := memo[e]; ok {
		return v
	}
	v := known{ok: true}
	args := make([]uint64, len(e.Args))
	for i, a := range e.Args {
		x := c.eval(a, memo)
		v.ok = v.ok && x.ok
		args[i] = uint64(x.x) & mask(a.DType)
	}
	if v.ok {
		v.x = signed(e.DType, evalOp(e, args))
	}
	memo[e] = v
	return v
}
