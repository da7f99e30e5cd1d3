package ops

import (
	"fmt"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/tensor"
)

// typesOf are the types of values.
func typesOf(vs []*ir.Value) []ir.Type {
	ts := make([]ir.Type, len(vs))
	for i, v := range vs {
		ts[i] = v.Type
	}
	return ts
}

// routes says that operand i routes (ir.OpDef.Routes).
func routes(i int) func(*ir.Op) []int { return func(*ir.Op) []int { return []int{i} } }

// routesFrom says that all operands from the i-th on route.
func routesFrom(i int) func(*ir.Op) []int {
	return func(op *ir.Op) []int {
		var out []int
		for k := i; k < len(op.Operands); k++ {
			out = append(out, k)
		}
		return out
	}
}

// sameTypes compares two lists of types; what names them in the error.
func sameTypes(what string, got, want []ir.Type) error {
	if len(got) != len(want) {
		return fmt.Errorf("%s: %d values %v, want %d %v", what, len(got), got, len(want), want)
	}
	for i := range got {
		if !got[i].Equal(want[i]) {
			return fmt.Errorf("%s: value %d is %v, want %v", what, i, got[i], want[i])
		}
	}
	return nil
}

// blockEffect is the strongest effect of the ops of a block.
func blockEffect(b *ir.Block) ir.Effect {
	e := ir.EffectNone
	for _, op := range b.Ops {
		e = max(e, op.Effect())
	}
	return e
}

// blockDet is the weakest determinism of the ops of a block.
func blockDet(b *ir.Block) ir.Det {
	d := ir.Exact
	for _, op := range b.Ops {
		d = max(d, op.Det())
	}
	return d
}

// blockFlops sums the arithmetic of a block.
func blockFlops(b *ir.Block) int64 {
	n := int64(0)
	for _, op := range b.Ops {
		n += ir.CostOf(op).Flops
	}
	return n
}

// blockBytes sums the memory traffic of a block whose ops run one by one.
func blockBytes(b *ir.Block) int64 {
	n := int64(0)
	for _, op := range b.Ops {
		n += ir.CostOf(op).Bytes
	}
	return n
}

func regionsEffect(op *ir.Op) ir.Effect {
	e := ir.EffectNone
	for _, r := range op.Regions {
		e = max(e, blockEffect(r))
	}
	return e
}

func regionsDet(op *ir.Op) ir.Det {
	d := ir.Exact
	for _, r := range op.Regions {
		d = max(d, blockDet(r))
	}
	return d
}

func ownBytes(op *ir.Op) int64 {
	n := int64(0)
	for _, v := range op.Operands {
		n += v.Type.Bytes()
	}
	for _, v := range op.Results {
		n += v.Type.Bytes()
	}
	return n
}

func regionResults(op *ir.Op) ([]ir.Type, error) { return typesOf(op.Regions[0].Results), nil }

const gradByRegion = "differentiated region by region by the autodiff pass, not by a rule of its own"

// branchChecks are the constraints that if and case share.
func branchChecks() []ir.Constraint {
	return []ir.Constraint{
		{Label: "C2", Text: "parameters of each region have the types of the operands after the first", Check: func(op *ir.Op) error {
			for i, r := range op.Regions {
				if err := sameTypes(fmt.Sprintf("parameters of region %d", i), typesOf(r.Params), typesOf(op.Operands[1:])); err != nil {
					return err
				}
			}
			return nil
		}},
		{Label: "C3", Text: "all regions give the same types", Check: func(op *ir.Op) error {
			for i, r := range op.Regions {
				if err := sameTypes(fmt.Sprintf("results of region %d", i), typesOf(r.Results), typesOf(op.Regions[0].Results)); err != nil {
					return err
				}
			}
			return nil
		}},
	}
}

func branchCost(op *ir.Op) ir.Cost {
	c := ir.Cost{Bytes: ownBytes(op)}
	for _, r := range op.Regions {
		c.Flops = max(c.Flops, blockFlops(r))
		c.Bytes = max(c.Bytes, blockBytes(r))
	}
	return c
}

func controlOps() []*ir.OpDef {
	return []*ir.OpDef{
		{
			Name: "fused", Family: "control",
			Doc: "Runs the region's ops on `args`: what they mean together is what they mean one by one, every one rounding to its element type. " +
				"Made by the pass group, as a unit that becomes one kernel.",
			Operands: []string{"args…"}, Results: []string{"results…"}, Regions: []string{"body"},
			Infer: regionResults,
			Constraints: []ir.Constraint{{Label: "C1", Text: "the region's parameters have the operands' types", Check: func(op *ir.Op) error {
				return sameTypes("parameters of the region", typesOf(op.Regions[0].Params), typesOf(op.Operands))
			}}},
			Effect: regionsEffect, Det: regionsDet,
			Cost: func(op *ir.Op) ir.Cost {
				return ir.Cost{Flops: blockFlops(op.Regions[0]), Bytes: ownBytes(op)}
			},
			NoGrad:        "made after differentiation",
			HandScheduled: "control",
			Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				return e.Block(op.Regions[0], in)
			},
		},
		{
			Name: "while", Family: "control",
			Doc: "Carries values through `body` as long as `cond`, run before each turn, gives true. Both regions see the carried values only.\n\n" +
				"`trips` is the number of turns where it is known, 0 where not; it serves cost and differentiation, the loop ends by `cond` alone.",
			Operands: []string{"carried…"}, Results: []string{"results…"}, Regions: []string{"cond", "body"},
			Attrs: []ir.AttrDef{{Name: "trips", Kind: "int", Default: int64(0), Doc: "known number of turns, or 0"}},
			Infer: func(op *ir.Op) ([]ir.Type, error) { return typesOf(op.Operands), nil },
			Constraints: []ir.Constraint{
				{Label: "C1", Text: "parameters of both regions have the carried types", Check: func(op *ir.Op) error {
					for i, r := range op.Regions {
						if err := sameTypes("parameters of "+op.Def.Regions[i], typesOf(r.Params), typesOf(op.Operands)); err != nil {
							return err
						}
					}
					return nil
				}},
				{Label: "C2", Text: "cond gives one bool[]", Check: func(op *ir.Op) error {
					return sameTypes("results of cond", typesOf(op.Regions[0].Results), []ir.Type{ir.T(dtype.Bool)})
				}},
				{Label: "C3", Text: "body gives the carried types", Check: func(op *ir.Op) error {
					return sameTypes("results of body", typesOf(op.Regions[1].Results), typesOf(op.Operands))
				}},
			},
			Effect: regionsEffect, Det: regionsDet,
			Cost: func(op *ir.Op) ir.Cost {
				n := max(1, op.Attrs.Int("trips"))
				c := ir.Cost{Bytes: ownBytes(op)}
				for _, r := range op.Regions {
					c.Flops += n * blockFlops(r)
					c.Bytes += n * blockBytes(r)
				}
				return c
			},
			NoGrad:        gradByRegion,
			HandScheduled: "control",
			Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				for {
					more, err := e.Block(op.Regions[0], in)
					if err != nil {
						return nil, err
					}
					if more[0].Data[0] == 0 {
						return in, nil
					}
					if in, err = e.Block(op.Regions[1], in); err != nil {
						return nil, err
					}
				}
			},
		},
		{
			Name: "if", Family: "control",
			Routes:   routes(0),
			Doc:      "Runs region `then` on `args` where `pred` is true, `else` where not. The other region is not run.",
			Operands: []string{"pred", "args…"}, Results: []string{"results…"}, Regions: []string{"then", "else"},
			Infer: regionResults,
			Constraints: append([]ir.Constraint{{Label: "C1", Text: "pred is bool[]", Check: func(op *ir.Op) error {
				return sameTypes("pred", typesOf(op.Operands[:1]), []ir.Type{ir.T(dtype.Bool)})
			}}}, branchChecks()...),
			Effect: regionsEffect, Det: regionsDet, Cost: branchCost,
			NoGrad:        gradByRegion,
			HandScheduled: "control",
			Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				if in[0].Data[0] != 0 {
					return e.Block(op.Regions[0], in[1:])
				}
				return e.Block(op.Regions[1], in[1:])
			},
		},
		{
			Name: "case", Family: "control",
			Routes:   routes(0),
			Doc:      "Runs the region that `index` names on `args`; an index outside of the list runs the last one.",
			Operands: []string{"index", "args…"}, Results: []string{"results…"}, Regions: []string{"branch…"},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				if len(op.Regions) == 0 {
					return nil, fmt.Errorf("no region, want at least one branch")
				}
				return regionResults(op)
			},
			Constraints: append([]ir.Constraint{{Label: "C1", Text: "index is i32[]", Check: func(op *ir.Op) error {
				return sameTypes("index", typesOf(op.Operands[:1]), []ir.Type{ir.T(dtype.I32)})
			}}}, branchChecks()...),
			Effect: regionsEffect, Det: regionsDet, Cost: branchCost,
			NoGrad:        gradByRegion,
			HandScheduled: "control",
			Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				i := indexAt(in[0], 0)
				if i < 0 || i >= int64(len(op.Regions)) {
					i = int64(len(op.Regions)) - 1
				}
				return e.Block(op.Regions[i], in[1:])
			},
		},
		{
			Name: "call", Family: "control",
			Doc:      "Runs the module's function `callee` on `args`. The callee stands before the caller in the module, so there is no recursion.",
			Operands: []string{"args…"}, Results: []string{"results…"},
			Attrs: []ir.AttrDef{{Name: "callee", Kind: "string", Doc: "name of the function"}},
			Infer: func(op *ir.Op) ([]ir.Type, error) {
				f, err := calleeOf(op)
				if err != nil {
					return nil, err
				}
				return typesOf(f.Body.Results), nil
			},
			Constraints: []ir.Constraint{
				{Label: "C1", Text: "the function's parameters have the operands' types", Check: func(op *ir.Op) error {
					f, err := calleeOf(op)
					if err != nil {
						return err
					}
					return sameTypes("parameters of @"+f.Name, typesOf(f.Body.Params), typesOf(op.Operands))
				}},
			},
			Effect: func(op *ir.Op) ir.Effect {
				if f, err := calleeOf(op); err == nil {
					return blockEffect(f.Body)
				}
				return ir.EffectHost
			},
			Det: func(op *ir.Op) ir.Det {
				if f, err := calleeOf(op); err == nil {
					return blockDet(f.Body)
				}
				return ir.Unknown
			},
			Cost: func(op *ir.Op) ir.Cost {
				c := ir.Cost{Bytes: ownBytes(op)}
				if f, err := calleeOf(op); err == nil {
					c.Flops = blockFlops(f.Body)
					c.Bytes += blockBytes(f.Body)
				}
				return c
			},
			NoGrad:        "differentiated in the callee by the autodiff pass (calls are inlined first)",
			HandScheduled: "control",
			Ref: func(e ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				return e.Call(op.Attrs.Str("callee"), in)
			},
		},
		{
			Name: "optimization_barrier", Family: "control",
			Doc: "Gives its operands back, all of them only once all are there. No pass looks through it, so that a schedule written by hand survives; " +
				"it costs nothing.",
			Operands: []string{"args…"}, Results: []string{"results…"},
			Infer: func(op *ir.Op) ([]ir.Type, error) { return typesOf(op.Operands), nil },
			Cost:  func(*ir.Op) ir.Cost { return ir.Cost{} },
			VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
				var some []*ir.Value
				for _, d := range douts {
					if d != nil {
						some = append(some, d)
					}
				}
				held := b.Multi("optimization_barrier", some, nil).Results
				grads := make([]*ir.Value, len(douts))
				for i, d := range douts {
					if d != nil {
						grads[i], held = held[0], held[1:]
					}
				}
				return grads, nil
			},
			HandScheduled: "control",
			Ref: func(_ ir.Eval, _ *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
				return in, nil
			},
		},
	}
}

// calleeOf finds the function that a call names, among those before the caller's.
func calleeOf(op *ir.Op) (*ir.Func, error) {
	name := op.Attrs.Str("callee")
	for _, f := range op.Block.Func.Module.Funcs {
		if f == op.Block.Func {
			break
		}
		if f.Name == name {
			return f, nil
		}
	}
	return nil, fmt.Errorf("no function @%s stands before @%s", name, op.Block.Func.Name)
}
