package ops

// Random ops. Bits are a function of the key (seed, step, micro-batch), the op's id and
// the element's index alone: Philox4x32-10, see docs/numerics.md.

import (
	le "encoding/binary"
	"fmt"
	"math"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/tensor"
)

func randomOps() []*ir.OpDef {
	return []*ir.OpDef{rngBitsRow(), uniformRow(), normalRow(), bernoulliRow(), dropoutRow(), keyMicroRow(), keyFoldRow()}
}

// KeyOf reads a key.
func KeyOf(t *tensor.Tensor) scalar.Key {
	return scalar.Key{
		Seed: le.LittleEndian.Uint64(t.Data),
		Step: le.LittleEndian.Uint32(t.Data[8:]), Micro: le.LittleEndian.Uint32(t.Data[12:]),
	}
}

// RandomBits calls visit with the 32 random bits of each element of a random op.
func RandomBits(key scalar.Key, rng uint32, shape []int64, visit func(flat int64, bits uint32)) {
	cols := int64(1)
	if len(shape) > 0 {
		cols = shape[len(shape)-1]
	}
	for flat := range tensor.Len(shape) {
		visit(flat, scalar.Random(key, rng, flat/cols*scalar.RowBlocks(cols), flat%cols))
	}
}

func wantKey(op *ir.Op, i int) error {
	if t := op.In(i); t.DType != dtype.Key || t.Rank() != 0 {
		return fmt.Errorf("operand %s is %v, want %v", operandName(op, i), t, ir.T(dtype.Key))
	}
	return nil
}

func rngAttr() ir.AttrDef {
	return ir.AttrDef{Name: "rng", Kind: "int", Doc: "the random op's id, unique in the module; clones and derivatives share it"}
}

func wantRNG(op *ir.Op) error {
	if r := op.Attrs.Int("rng"); r < 0 || r > math.MaxUint32 {
		return fmt.Errorf("rng is %d, want 0 … 2^32-1", r)
	}
	return nil
}

func wantP(op *ir.Op) error {
	if p := op.Attrs.Float("p"); !(p >= 0 && p <= 1) {
		return fmt.Errorf("p is %v, want 0 … 1", p)
	}
	return nil
}

func keyed(*ir.Op) ir.Det { return ir.Keyed }

func rngOf(op *ir.Op) uint32 { return uint32(op.Attrs.Int("rng")) }

// randomRow is the row of an op that makes random elements from a key.
func randomRow(name, doc string, extra []ir.AttrDef, d func(op *ir.Op) dtype.Type, class class,
	ref func(op *ir.Op, each func(visit func(flat int64, bits uint32))) *tensor.Tensor,
	body func(c ir.ElemCtx, op *ir.Op, bits *kern.Expr) *kern.Expr) *ir.OpDef {
	return checked(&ir.OpDef{
		Name: name, Family: "random", Doc: doc,
		Operands: []string{"key"}, Results: []string{"y"},
		Attrs:  append([]ir.AttrDef{rngAttr(), {Name: "shape", Kind: "ints", Doc: "shape of the result"}}, extra...),
		Det:    keyed,
		Cost:   flopsPerElement(20),
		NoGrad: "random numbers do not depend on any differentiable value", NoGradZero: true,
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			return one(ref(op, func(visit func(int64, uint32)) {
				RandomBits(KeyOf(in[0]), rngOf(op), op.Attrs.Ints("shape"), visit)
			}))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			return []*kern.Expr{body(c, op, c.Random(0, rngOf(op), op.Attrs.Ints("shape"), idx))}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "the operand is a key", Check: func(op *ir.Op) error { return wantKey(op, 0) }},
		{Label: "C2", Text: "rng is a 32-bit number, the shape's sizes are not negative", Check: func(op *ir.Op) error {
			if err := wantRNG(op); err != nil {
				return err
			}
			return wantDims(op.Attrs.Ints("shape"))
		}},
		{Label: "C3", Text: "elements are " + class.String(), Check: func(op *ir.Op) error {
			if !class.has(d(op)) {
				return fmt.Errorf("dtype is %v", d(op))
			}
			return nil
		}},
	}, func(op *ir.Op) ir.Type { return ir.T(d(op), op.Attrs.Ints("shape")...) })
}

func dtypeAttr() []ir.AttrDef {
	return []ir.AttrDef{{Name: "dtype", Kind: "dtype", Default: dtype.F32, Doc: "element type of the result"}}
}

func attrDType(op *ir.Op) dtype.Type { return op.Attrs.DType("dtype") }

// fromF32Bits makes a random float row's reference and body of an f32 function of the bits.
func fromF32Bits(ref func(u uint32) float32, body func(u *kern.Expr) *kern.Expr) (
	func(op *ir.Op, each func(visit func(int64, uint32))) *tensor.Tensor,
	func(c ir.ElemCtx, op *ir.Op, u *kern.Expr) *kern.Expr) {
	return func(op *ir.Op, each func(visit func(int64, uint32))) *tensor.Tensor {
			shape := op.Attrs.Ints("shape")
			out := make([]float32, tensor.Len(shape))
			each(func(i int64, u uint32) { out[i] = ref(u) })
			return ConvertTensor(makeF32(dtype.F32, shape, out), attrDType(op))
		}, func(c ir.ElemCtx, op *ir.Op, u *kern.Expr) *kern.Expr {
			x := body(u)
			if d := attrDType(op); d == dtype.F16 || d == dtype.BF16 {
				return c.Round(x, d)
			}
			return kern.Convert(x, attrDType(op))
		}
}

func rngBitsRow() *ir.OpDef {
	return randomRow("rng_bits", "32 random bits for each element, u32.", nil,
		func(*ir.Op) dtype.Type { return dtype.U32 }, unsigned,
		func(op *ir.Op, each func(visit func(int64, uint32))) *tensor.Tensor {
			out := tensor.New(dtype.U32, op.Attrs.Ints("shape")...)
			each(func(i int64, u uint32) { out.SetBits(i, uint64(u)) })
			return out
		},
		func(_ ir.ElemCtx, _ *ir.Op, u *kern.Expr) *kern.Expr { return u })
}

func uniformRow() *ir.OpDef {
	ref, body := fromF32Bits(scalar.Uniform32, kern.Uniform)
	return randomRow("uniform", "Uniform in [0, 1): the upper 24 bits times 2^-24 in f32, then converted.", dtypeAttr(), attrDType, floats, ref, body)
}

// The standard normal is √2·erf_inv(v) for v uniform in (-1, 1): v = (2k+1-2^24)·2^-24 for
// the upper 24 bits k, which is exact in f32.
func normal32(u uint32) float32 {
	v := scalar.Fma32(float32(u>>8), 0x1p-23, -(1 - 0x1p-24))
	return float32(math.Sqrt2) * scalar.ErfInv32(v)
}

func normalExpr(u *kern.Expr) *kern.Expr {
	k := kern.Convert(kern.Bitcast(kern.Shr(u, kern.U32(8)), dtype.I32), dtype.F32)
	v := kern.Fma(k, kern.F32(0x1p-23), kern.F32(-(1 - 0x1p-24)))
	return kern.Mul(kern.F32(float32(math.Sqrt2)), kern.ErfInv(v))
}

func normalRow() *ir.OpDef {
	ref, body := fromF32Bits(normal32, normalExpr)
	return randomRow("normal", "Standard normal: `√2 · erf_inv(v)` in f32 with v = (2k + 1 - 2^24) · 2^-24 for the upper 24 random bits k, then converted.",
		dtypeAttr(), attrDType, floats, ref, body)
}

func bernoulliRow() *ir.OpDef {
	d := randomRow("bernoulli", "True with probability p: where the 32 random bits are less than floor(p·2^32).",
		[]ir.AttrDef{{Name: "p", Kind: "float", Doc: "probability, 0 … 1"}},
		func(*ir.Op) dtype.Type { return dtype.Bool }, boolean,
		func(op *ir.Op, each func(visit func(int64, uint32))) *tensor.Tensor {
			out, below := tensor.New(dtype.Bool, op.Attrs.Ints("shape")...), scalar.DropBelow(op.Attrs.Float("p"))
			each(func(i int64, u uint32) { out.SetBits(i, uint64(b2i(uint64(u) < below))) })
			return out
		},
		func(_ ir.ElemCtx, op *ir.Op, u *kern.Expr) *kern.Expr {
			return kern.Not(kern.Kept(u, op.Attrs.Float("p")))
		})
	d.Constraints = append(d.Constraints, ir.Constraint{Label: "C4", Text: "p is a probability", Check: wantP})
	return d
}

func dropoutRow() *ir.OpDef {
	// The factor of kept elements, in the type of computation.
	factor := func(op *ir.Op, d dtype.Type) float64 {
		if d == dtype.F64 {
			return 1 / (1 - op.Attrs.Float("p"))
		}
		return float64(scalar.DropScale(op.Attrs.Float("p")))
	}
	return checked(&ir.OpDef{
		Name: "dropout", Family: "random",
		Doc: "x with elements dropped (+0) with probability p, where the 32 random bits are less than floor(p·2^32); kept ones are multiplied by 1/(1-p), " +
			"rounded once to f32 (f64 for f64). With p = 0 it is x, needs no key and is not random.",
		Operands: []string{"x", "key?"}, Results: []string{"y"},
		Attrs: []ir.AttrDef{rngAttr(), {Name: "p", Kind: "float", Doc: "probability of dropping, 0 … 1, less than 1"}},
		Det: func(op *ir.Op) ir.Det {
			if op.Attrs.Float("p") == 0 {
				return ir.Exact
			}
			return ir.Keyed
		},
		Cost: flopsPerElement(20),
		VJP: func(b *ir.Builder, op *ir.Op, douts []*ir.Value) ([]*ir.Value, error) {
			out := make([]*ir.Value, len(op.Operands))
			if out[0] = douts[0]; op.Attrs.Float("p") > 0 {
				out[0] = b.Op("dropout", []*ir.Value{douts[0], op.Operands[1]}, ir.A("p", op.Attrs.Float("p")), ir.A("rng", op.Attrs.Int("rng")))
			}
			return out, nil
		},
		Ref: func(_ ir.Eval, op *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			p, x := op.Attrs.Float("p"), in[0]
			if p == 0 {
				return one(x.Clone())
			}
			below, key := scalar.DropBelow(p), KeyOf(in[1])
			if x.DType == dtype.F64 {
				out, f := make([]float64, x.Len()), factor(op, x.DType)
				RandomBits(key, rngOf(op), x.Shape, func(i int64, u uint32) {
					if uint64(u) >= below {
						out[i] = x.F64()[i] * f
					}
				})
				return one(makeF64(x.Shape, out))
			}
			vals, out, f := readF32(x), make([]float32, x.Len()), scalar.DropScale(p)
			RandomBits(key, rngOf(op), x.Shape, func(i int64, u uint32) {
				if uint64(u) >= below {
					out[i] = vals[i] * f
				}
			})
			return one(makeF32(x.DType, x.Shape, out))
		},
		Elem: func(c ir.ElemCtx, op *ir.Op, idx []*kern.Expr) []*kern.Expr {
			x, p := c.Arg(0, idx...), op.Attrs.Float("p")
			if p == 0 {
				return []*kern.Expr{x}
			}
			u := c.Random(1, rngOf(op), op.In(0).Shape, idx)
			y := c.Round(kern.Mul(x, lit(x, factor(op, op.In(0).DType))), op.In(0).DType)
			return []*kern.Expr{kern.Select(kern.Kept(u, p), y, lit(x, 0))}
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "x is of a float type", Check: func(op *ir.Op) error { return wantFloat(op, 0) }},
		{Label: "C2", Text: "0 ≤ p < 1", Check: func(op *ir.Op) error {
			if p := op.Attrs.Float("p"); !(p >= 0 && p < 1) {
				return fmt.Errorf("p is %v", p)
			}
			return nil
		}},
		{Label: "C3", Text: "with p > 0 there is a key, and rng is a 32-bit number", Check: func(op *ir.Op) error {
			if op.Attrs.Float("p") == 0 && len(op.Operands) == 1 {
				return nil
			}
			if len(op.Operands) < 2 {
				return fmt.Errorf("p is %v and there is no key", op.Attrs.Float("p"))
			}
			if err := wantRNG(op); err != nil {
				return err
			}
			return wantKey(op, 1)
		}},
	}, func(op *ir.Op) ir.Type { return op.In(0) })
}

// keyRow is the row of an op that makes a key from a key and a number.
func keyRow(name, doc string, ref func(k scalar.Key, n uint32) scalar.Key, body func(k kern.KeyWords, n *kern.Expr) [4]*kern.Expr) *ir.OpDef {
	return checked(&ir.OpDef{
		Name: name, Family: "random", Doc: doc,
		Operands: []string{"key", "n"}, Results: []string{"y"},
		Det:    keyed,
		NoGrad: "keys have no derivative", NoGradZero: true,
		Ref: func(_ ir.Eval, _ *ir.Op, in []*tensor.Tensor) ([]*tensor.Tensor, error) {
			k := ref(KeyOf(in[0]), uint32(in[1].Bits(0)))
			return one(tensor.Key(k.Seed, k.Step, k.Micro))
		},
		Kern: func(*ir.Op) ([]ir.KernelUse, error) {
			b := kern.NewBuilder(name, 1)
			in, n, out := b.In("key", dtype.U32, 4), b.In("n", dtype.I32, 1), b.Out("y", dtype.U32, 4)
			for i, w := range body(kern.LoadKey(in), kern.Bitcast(n.At(kern.I64(0)), dtype.U32)) {
				b.Do(out.Set(kern.I64(int64(i)), w))
			}
			return []ir.KernelUse{{Kernel: b.K, Args: []int{0, 1, 2}}}, nil
		},
	}, []ir.Constraint{
		{Label: "C1", Text: "the first operand is a key", Check: func(op *ir.Op) error { return wantKey(op, 0) }},
		{Label: "C2", Text: "n is an i32 scalar", Check: func(op *ir.Op) error { return wantScalar(op, 1, dtype.I32) }},
	}, func(op *ir.Op) ir.Type { return op.In(0) })
}

func keyMicroRow() *ir.OpDef {
	return keyRow("key_micro", "The key with its micro-batch number set to n.",
		func(k scalar.Key, n uint32) scalar.Key { k.Micro = n; return k },
		func(k kern.KeyWords, n *kern.Expr) [4]*kern.Expr { return [4]*kern.Expr{k.SeedLo, k.SeedHi, k.Step, n} })
}

// foldTag is the second counter word of key_fold.
const foldTag = 0x666f6c64 // "fold"

func keyFoldRow() *ir.OpDef {
	return keyRow("key_fold", "A key of another stream: step and micro-batch are kept, the seed becomes words 0 and 1 of Philox4x32-10 with counter (n, 0x666f6c64, 0, 0) and the old seed as key.",
		func(k scalar.Key, n uint32) scalar.Key {
			w := scalar.Philox4x32([4]uint32{n, foldTag, 0, 0}, [2]uint32{uint32(k.Seed), uint32(k.Seed >> 32)})
			k.Seed = uint64(w[0]) | uint64(w[1])<<32
			return k
		},
		func(k kern.KeyWords, n *kern.Expr) [4]*kern.Expr {
			ctr, key := [4]*kern.Expr{n, kern.U32(foldTag), kern.U32(0), kern.U32(0)}, [2]*kern.Expr{k.SeedLo, k.SeedHi}
			return [4]*kern.Expr{kern.Philox(0, ctr, key), kern.Philox(1, ctr, key), k.Step, k.Micro}
		})
}
