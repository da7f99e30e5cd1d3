package ir

// Mapping takes values of an original to those of a copy.
type Mapping map[*Value]*Value

// Get is the copy of v, or v itself where it was not copied.
func (m Mapping) Get(v *Value) *Value {
	if c := m[v]; c != nil {
		return c
	}
	return v
}

// All maps a list.
func (m Mapping) All(vs []*Value) []*Value {
	out := make([]*Value, len(vs))
	for i, v := range vs {
		out[i] = m.Get(v)
	}
	return out
}

// Clone copies a module; the copy shares op rows and dense attributes, nothing else.
func (m *Module) Clone() *Module {
	c := &Module{Name: m.Name, Attrs: m.Attrs}
	for _, f := range m.Funcs {
		nf := &Func{Module: c, Name: f.Name, Results: append([]string{}, f.Results...), numOps: f.numOps, numValues: f.numValues}
		k := &exactCopy{of: make([]*Value, f.numValues), values: make([]Value, f.numValues), ops: make([]Op, f.numOps), originals: make([]*Op, f.numOps)}
		nf.Body = cloneBlock(nf, f.Body, k)
		c.Funcs = append(c.Funcs, nf)
	}
	return c
}

// copying is how a block is copied.
type copying interface {
	value(v *Value) *Value // a new copy, which get finds from then on
	get(v *Value) *Value   // the copy, or v itself where it was not copied
	op(op *Op) *Op         // a new copy, with an id and nothing else
	original(op *Op) *Op   // what stands for op, of which a copied op is a clone
	list(n int) []*Value   // room for values
}

// cloneBlock copies a block with its nested regions.
func cloneBlock(f *Func, b *Block, k copying) *Block {
	nb := &Block{Func: f, Params: make([]*Value, len(b.Params)), Ops: make([]*Op, len(b.Ops))}
	all := func(vs []*Value) []*Value {
		out := k.list(len(vs))
		for i, v := range vs {
			out[i] = k.get(v)
		}
		return out
	}
	for i, p := range b.Params {
		nb.Params[i] = k.value(p)
		nb.Params[i].Block = nb
	}
	for i, op := range b.Ops {
		c := k.op(op)
		*c = Op{ID: c.ID, Def: op.Def, Block: nb, Operands: all(op.Operands), Results: k.list(len(op.Results)), Attrs: op.Attrs, Loc: op.Loc}
		if op.Remat != nil {
			c.Remat = k.original(op.Remat)
		}
		for j, r := range op.Results {
			c.Results[j] = k.value(r)
			c.Results[j].Block, c.Results[j].Op = nb, c
		}
		for _, r := range op.Regions {
			nr := cloneBlock(f, r, k)
			nr.Owner = c
			c.Regions = append(c.Regions, nr)
		}
		nb.Ops[i] = c
	}
	nb.Results = all(b.Results)
	return nb
}

// exactCopy keeps ids and names. Ids are dense, so tables are slices, and all copies lie together.
type exactCopy struct {
	of        []*Value // by id: the original
	values    []Value  // by id: the copy
	ops       []Op
	originals []*Op
	room      []*Value
}

func (k *exactCopy) value(v *Value) *Value {
	c := &k.values[v.ID]
	*c = Value{ID: v.ID, Name: v.Name, Type: v.Type, Index: v.Index, Attrs: v.Attrs}
	k.of[v.ID] = v
	return c
}

func (k *exactCopy) get(v *Value) *Value {
	if v.ID < len(k.of) && k.of[v.ID] == v {
		return &k.values[v.ID]
	}
	return v
}

func (k *exactCopy) op(op *Op) *Op {
	k.originals[op.ID] = op
	k.ops[op.ID].ID = op.ID
	return &k.ops[op.ID]
}

func (k *exactCopy) original(op *Op) *Op {
	if op.ID < len(k.originals) && k.originals[op.ID] == op {
		return &k.ops[op.ID]
	}
	return op
}

func (k *exactCopy) list(n int) []*Value {
	if n > len(k.room) {
		k.room = make([]*Value, max(n, 512))
	}
	out := k.room[:n:n]
	k.room = k.room[n:]
	return out
}

// freshCopy gives copies ids and names of their own.
type freshCopy struct {
	f    *Func
	vals Mapping
	ops  map[*Op]*Op
}

func (k *freshCopy) value(v *Value) *Value {
	c := k.f.newValue("", v.Type)
	c.Index, c.Attrs = v.Index, v.Attrs
	k.vals[v] = c
	return c
}

func (k *freshCopy) get(v *Value) *Value { return k.vals.Get(v) }

func (k *freshCopy) op(op *Op) *Op {
	c := &Op{ID: k.f.numOps}
	k.f.numOps++
	k.ops[op] = c
	return c
}

func (k *freshCopy) original(op *Op) *Op {
	if c := k.ops[op]; c != nil {
		return c
	}
	return op
}

func (k *freshCopy) list(n int) []*Value { return make([]*Value, n) }

// CloneRegion copies a region for an op of f, with fresh ids.
func (f *Func) CloneRegion(b *Block) *Block {
	return cloneBlock(f, b, &freshCopy{f, Mapping{}, map[*Op]*Op{}})
}

// CloneOp appends a copy of op to b with operands mapped, and maps its results.
func (b *Block) CloneOp(op *Op, vals Mapping) *Op {
	f := b.Func
	types := make([]Type, len(op.Results))
	for i, r := range op.Results {
		types[i] = r.Type
	}
	var regions []*Block
	for _, r := range op.Regions {
		regions = append(regions, f.CloneRegion(r))
	}
	c := f.NewOp(op.Def, vals.All(op.Operands), types, op.Attrs, regions, op.Loc)
	for i, r := range op.Results {
		vals[r] = c.Results[i]
	}
	b.Append(c)
	return c
}
