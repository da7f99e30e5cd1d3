package lower_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/kern"
	"reprise/ir/kern/scalar"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes"
	"reprise/passes/fuse"
	"reprise/passes/lower"
)

// TestKernelsEqualInterpreter runs the kernels of every op of grouped models in the kernel
// interpreter, and the contraction family by its definition, against the ops' reference.
func TestKernelsEqualInterpreter(t *testing.T) {
	for _, spec := range []string{
		"builtin:mlp,in=20,hidden=37,layers=2,batch=6,dropout=0.3",
		"builtin:gpt,layers=1,d=64,heads=2,seq=70,batch=2,vocab=33,dropout=0.2",
		"builtin:llama,layers=1,d=32,heads=4,kv_heads=2,seq=8,batch=2,vocab=33",
		"builtin:cnn,size=12,width=4,batch=3,dropout=0.2",
		"builtin:resnet,size=8,width=4,blocks=1,batch=3",
		"builtin:lstm,batch=3,seq=4,d=24,hidden=20,vocab=30",
		"builtin:moe,layers=1,d=16,heads=2,seq=8,batch=2,experts=3,vocab=11",
	} {
		for _, train := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/train=%v", spec, train), func(t *testing.T) {
				m, err := frontend.Load(spec, frontend.Options{Train: train})
				require.NoError(t, err)
				table := ops.Table()
				mod := m.Module.Clone()
				require.NoError(t, passes.Run(mod, table, passes.Options{}))
				for _, f := range mod.Funcs {
					checkFunc(t, f)
				}
				// The same, with every operand that a reader can compute computed there.
				f := mod.Func("step")
				sites := fuse.Sites(f)
				fuse.Fold(f, table, sites)
				f.Renumber()
				require.NoError(t, ir.Verify(mod))
				checkFunc(t, f)
			})
		}
	}
}

func checkFunc(t *testing.T, f *ir.Func) {
	rng := rand.New(rand.NewPCG(1, 2))
	var args []*tensor.Tensor
	for _, p := range f.Body.Params {
		args = append(args, randomArg(rng, p))
	}
	vals := map[*ir.Value]*tensor.Tensor{}
	_, err := interp.RunWith(f, args, interp.Options{Observe: func(path string, v *ir.Value, x *tensor.Tensor) {
		if path == "" {
			vals[v] = x
		}
	}})
	require.NoError(t, err)
	for _, op := range f.Body.Ops {
		if lower.IsView(op) || lower.IsConstant(op) {
			continue
		}
		l, err := lower.Op(op)
		require.NoError(t, err, op.String())
		var in []*tensor.Tensor
		for _, v := range op.Operands {
			in = append(in, vals[v])
		}
		out, skipped, err := runLowered(op, l, in)
		require.NoError(t, err, "%s", op)
		if skipped {
			continue
		}
		for i, r := range op.Results {
			if want := vals[r]; !tensor.Equal(want, out[i]) {
				t.Fatalf("%s %s: %s", f.Name, op, firstDiff(want, out[i]))
			}
		}
	}
}

func firstDiff(a, b *tensor.Tensor) string {
	for i := range a.Len() {
		if a.Bits(i) != b.Bits(i) {
			return fmt.Sprintf("element %d of %v: want %v (%x), got %v (%x)", i, a.Shape, a.Float(i), a.Bits(i), b.Float(i), b.Bits(i))
		}
	}
	return "equal"
}

func randomArg(rng *rand.Rand, p *ir.Value) *tensor.Tensor {
	x := tensor.New(p.Type.DType, p.Type.Shape...)
	if p.Type.DType == dtype.Key {
		return tensor.Key(rng.Uint64(), 7, 0)
	}
	for i := range x.Len() {
		switch p.Type.DType {
		case dtype.F32:
			x.F32()[i] = float32(rng.NormFloat64())
		case dtype.F64:
			x.F64()[i] = rng.NormFloat64()
		default:
			x.SetBits(i, uint64(rng.IntN(4)))
		}
	}
	return x
}

// runLowered runs the launches of a lowered op; skipped: a family with no interpreter here.
func runLowered(op *ir.Op, l *lower.Lowered, in []*tensor.Tensor) (out []*tensor.Tensor, skipped bool, err error) {
	for _, r := range op.Results {
		o := tensor.New(r.Type.DType, r.Type.Shape...)
		for i := range o.Data {
			o.Data[i] = 0xa5 // a kernel must not count on zeros
		}
		out = append(out, o)
	}
	var work [][]byte
	for _, n := range l.Workspaces {
		work = append(work, make([]byte, n))
	}
	for _, launch := range l.Launches {
		var bufs [][]byte
		for _, r := range launch.Args {
			switch r.Kind {
			case lower.Operand:
				bufs = append(bufs, in[r.Index].Data)
			case lower.Result:
				bufs = append(bufs, out[r.Index].Data)
			default:
				bufs = append(bufs, work[r.Index])
			}
		}
		switch {
		case launch.Kern != nil:
			if err := kern.Check(launch.Kern); err != nil {
				return nil, false, err
			}
			// Tiles in reverse: they may run in any order.
			for i := launch.Kern.Tiles - 1; i >= 0; i-- {
				if err := kern.Run(launch.Kern, bufs, i, i+1); err != nil {
					return nil, false, fmt.Errorf("%w in\n%s", err, launch.Kern.Text())
				}
			}
		case launch.Contract != nil && launch.Contract.A == dtype.F32 && launch.Contract.B == dtype.F32:
			if err := runContract(launch.Contract, bufs); err != nil {
				return nil, false, err
			}
		default:
			return nil, true, nil
		}
	}
	return out, false, nil
}

// runContract is the definition of the contraction family; epilogues run as kernels of one lane.
func runContract(c *kern.Contract, bufs [][]byte) error {
	view := func(i int) []float32 {
		return (&tensor.Tensor{DType: dtype.F32, Shape: []int64{int64(len(bufs[i]) / 4)}, Data: bufs[i]}).F32()
	}
	if err := kern.CheckContract(c); err != nil {
		return err
	}
	extra := bufs[c.Buffers():]
	for side, pro := range []*kern.Prologue{c.ProA, c.ProB} {
		if pro != nil {
			data, err := c.Operand(side, extra)
			if err != nil {
				return fmt.Errorf("%w in\n%s", err, c.Text())
			}
			bufs = slices.Insert(slices.Clone(bufs), side, data)
		}
	}
	a, b := view(0), view(1)
	total := int64(1)
	for _, x := range c.Batch {
		total *= x.Size
	}
	for bt := range total {
		var oa, ob, oc int64
		rest := bt
		for i := len(c.Batch) - 1; i >= 0; i-- {
			x := c.Batch[i]
			j := rest % x.Size
			rest /= x.Size
			oa, ob, oc = oa+j*x.StrideA, ob+j*x.StrideB, oc+j*x.StrideC
		}
		for m := range c.M.Size {
			for n := range c.N.Size {
				var acc float32
				var walk func(k int, pa, pb int64)
				walk = func(k int, pa, pb int64) {
					if k == len(c.K) {
						acc = scalar.Fma32(a[pa], b[pb], acc)
						return
					}
					for i := range c.K[k].Size {
						walk(k+1, pa+i*c.K[k].StrideA, pb+i*c.K[k].StrideB)
					}
				}
				walk(0, oa+m*c.M.StrideA, ob+n*c.N.StrideB)
				if c.Epilogue == nil {
					view(2)[oc+m*c.M.StrideC+n*c.N.StrideC] = acc
					continue
				}
				e := c.Epilogue
				k := kern.NewBuilder("epilogue", 1).K
				k.Params = c.Params
				lane := kern.NewVar("lane", dtype.I64)
				body := []kern.Stmt{kern.Let(e.N, kern.Add(kern.I64(n), kern.Get(lane))), kern.Let(e.Acc, kern.F32(acc))}
				k.Body = []kern.Stmt{kern.Let(e.Batch, kern.I64(bt)), kern.Let(e.M, kern.I64(m)), kern.Lane(lane, kern.I64(1), append(body, e.Body...)...)}
				if err := kern.Run(k, extra, 0, 1); err != nil {
					return fmt.Errorf("%w in epilogue\n%s", err, k.Text())
				}
			}
		}
	}
	return nil
}
