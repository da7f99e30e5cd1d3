// Package canon gives equal computations equal forms and removes ops that do nothing. Every
// rule is exact to the bit.
package canon

import (
	"slices"

	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/tensor"
)

// Run rewrites every function and region until no rule applies.
func Run(m *ir.Module, t *ir.Table) (err error) {
	defer diag.Catch(&err)
	for _, f := range m.Funcs {
		block(f.Body, t)
		f.Renumber()
	}
	return nil
}

func block(b *ir.Block, t *ir.Table) {
	for once(b, t) {
	}
	for _, op := range b.Ops {
		if op.Name() != "fused" {
			for _, r := range op.Regions {
				block(r, t)
			}
		}
	}
}

// once applies the rules to each op in order and reports whether one applied.
func once(b *ir.Block, t *ir.Table) bool {
	changed := false
	ops := b.Ops
	b.Ops = nil
	to := ir.Mapping{}
	for _, op := range ops {
		op.Operands = to.All(op.Operands)
		bd := ir.NewBuilder(t, b, op.Loc)
		if v := simplify(bd, op); v != nil && op.Remat == nil {
			v.Inherit(op.Results[0])
			to[op.Results[0]] = v
			changed = true
			continue
		}
		b.Ops = append(b.Ops, op)
	}
	b.Results = to.All(b.Results)
	return changed
}

// simplify is a value equal to op's only result, or nil. It may append ops.
func simplify(b *ir.Builder, op *ir.Op) *ir.Value {
	if len(op.Results) != 1 || len(op.Operands) == 0 {
		return nil
	}
	x := op.Operands[0]
	same := x.Type.Equal(op.Out(0))
	def := x.Op
	if x.Marked() {
		def = nil // a marked value exists: nothing looks through it
	}
	switch op.Name() {
	case "reshape":
		if same {
			return x
		}
		if def != nil && def.Name() == "reshape" {
			return b.Op("reshape", []*ir.Value{def.Operands[0]}, op.Attrs...)
		}
	case "convert", "copy":
		if same {
			return x
		}
	case "broadcast":
		if same && isIota(op.Attrs.Ints("dims")) {
			return x
		}
		if def != nil && def.Name() == "broadcast" {
			// Dimensions of dimensions.
			outer, inner := op.Attrs.Ints("dims"), def.Attrs.Ints("dims")
			dims := make([]int64, len(inner))
			for i, d := range inner {
				dims[i] = outer[d]
			}
			return b.Op("broadcast", []*ir.Value{def.Operands[0]}, ir.A("dims", dims), ir.A("shape", op.Out(0).Shape))
		}
		if def != nil && def.Name() == "constant" && isSplat(def) {
			return splat(b, op, def.Attrs.Tensor("value"))
		}
	case "transpose":
		perm := op.Attrs.Ints("perm")
		if isIota(perm) {
			return x
		}
		if def != nil && def.Name() == "transpose" {
			inner := def.Attrs.Ints("perm")
			both := make([]int64, len(perm))
			for i, p := range perm {
				both[i] = inner[p]
			}
			return b.Op("transpose", []*ir.Value{def.Operands[0]}, ir.A("perm", both))
		}
	case "slice":
		if same {
			return x
		}
	case "pad":
		if same && zeros(op.Attrs.Ints("low")) && zeros(op.Attrs.Ints("high")) && zeros(op.Attrs.Ints("interior")) {
			return x
		}
	case "dropout":
		if op.Attrs.Float("p") == 0 {
			return x
		}
	case "select":
		if op.Operands[1] == op.Operands[2] {
			return op.Operands[1]
		}
	case "contract":
		return foldTranspose(b, op)
	}
	return nil
}

func isIota(xs []int64) bool {
	for i, x := range xs {
		if x != int64(i) {
			return false
		}
	}
	return true
}

func zeros(xs []int64) bool { return !slices.ContainsFunc(xs, func(x int64) bool { return x != 0 }) }

func isSplat(op *ir.Op) bool {
	t := op.Attrs.Tensor("value")
	if t.DType.Size() > 8 || t.Len() == 0 {
		return false
	}
	for i := int64(1); i < t.Len(); i++ {
		if t.Bits(i) != t.Bits(0) {
			return false
		}
	}
	return true
}

// maxSplat bounds the elements of a splat constant that is written out: the text form and the
// kernels treat it as one element.
const maxSplat = 1 << 16

func splat(b *ir.Builder, op *ir.Op, v *tensor.Tensor) *ir.Value {
	if op.Out(0).Len() > maxSplat || op.Out(0).Rank() == 0 {
		return nil
	}
	out := tensor.New(v.DType, op.Out(0).Shape...)
	for i := range out.Len() {
		out.SetBits(i, v.Bits(0))
	}
	return b.Op("constant", nil, ir.A("value", out))
}

// foldTranspose reads a transposed operand of a contraction where it lies: a contraction
// takes any strides. Only where the result's dimensions stay in order.
func foldTranspose(b *ir.Builder, op *ir.Op) *ir.Value {
	for i, side := range []string{"lhs", "rhs"} {
		def := op.Operands[i].Op
		if def == nil || def.Name() != "transpose" {
			continue
		}
		perm := def.Attrs.Ints("perm")
		batch, contract := op.Attrs.Ints(side+"_batch"), op.Attrs.Ints(side+"_contract")
		var free []int64
		for d := range perm {
			if !slices.Contains(batch, int64(d)) && !slices.Contains(contract, int64(d)) {
				free = append(free, perm[d])
			}
		}
		if !slices.IsSorted(free) {
			continue
		}
		through := func(dims []int64) []int64 {
			out := make([]int64, len(dims))
			for j, d := range dims {
				out[j] = perm[d]
			}
			return out
		}
		operands := slices.Clone(op.Operands)
		operands[i] = def.Operands[0]
		attrs := op.Attrs.Set(side+"_batch", through(batch)).Set(side+"_contract", through(contract))
		return b.Op("contract", operands, attrs...)
	}
	return nil
}
