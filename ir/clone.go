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
		nf := &Func{Module: c, Name: f.Name, Results: append([]string{}, f.Results...)}
		vals, ops := Mapping{}, map[*Op]*Op{}
		nf.Body = cloneBlock(nf, f.Body, vals, ops, true)
		nf.numOps, nf.numValues = f.numOps, f.numValues
		c.Funcs = append(c.Funcs, nf)
	}
	return c
}

// cloneBlock copies a block with its nested regions; exact keeps ids and names.
func cloneBlock(f *Func, b *Block, vals Mapping, ops map[*Op]*Op, exact bool) *Block {
	nb := &Block{Func: f}
	copyValue := func(v *Value) *Value {
		c := &Value{ID: v.ID, Name: v.Name, Type: v.Type, Index: v.Index, Block: nb, Attrs: v.Attrs}
		if !exact {
			c.ID = f.numValues
			f.numValues++
			c.Name = autoName(c.ID)
		}
		vals[v] = c
		return c
	}
	for _, p := range b.Params {
		nb.Params = append(nb.Params, copyValue(p))
	}
	for _, op := range b.Ops {
		c := &Op{ID: op.ID, Def: op.Def, Block: nb, Operands: vals.All(op.Operands), Attrs: op.Attrs, Loc: op.Loc, Remat: op.Remat}
		if !exact {
			c.ID = f.numOps
			f.numOps++
		}
		if n := ops[op.Remat]; op.Remat != nil && n != nil {
			c.Remat = n
		}
		ops[op] = c
		for _, r := range op.Results {
			nr := copyValue(r)
			nr.Op = c
			c.Results = append(c.Results, nr)
		}
		for _, r := range op.Regions {
			nr := cloneBlock(f, r, vals, ops, exact)
			nr.Owner = c
			c.Regions = append(c.Regions, nr)
		}
		nb.Ops = append(nb.Ops, c)
	}
	nb.Results = vals.All(b.Results)
	return nb
}

// CloneRegion copies a region for an op of f, with fresh ids.
func (f *Func) CloneRegion(b *Block) *Block {
	return cloneBlock(f, b, Mapping{}, map[*Op]*Op{}, false)
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
