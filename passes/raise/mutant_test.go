package raise_test

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/interp"
	"reprise/ir/ops"
	"reprise/ir/tensor"
	"reprise/passes/raise"
)

// mutate changes one thing about a program: an operand, an operation, a constant, an axis. It reports whether
// the program still verifies.
func mutate(m *ir.Module, r *rand.Rand) bool {
	table, f := ops.Table(), m.Funcs[0]
	if len(f.Body.Ops) == 0 {
		return false
	}
	op := f.Body.Ops[r.IntN(len(f.Body.Ops))]
	binary := []string{"add", "sub", "mul", "div", "max", "min"}
	unary := []string{"exp", "neg", "tanh", "erf", "logistic", "stop_gradient", "abs", "sin"}
	switch kind := r.IntN(4); {
	case kind == 0 && len(op.Operands) > 0: // another operand of the same type
		i := r.IntN(len(op.Operands))
		var others []*ir.Value
		for _, p := range f.Body.Params {
			if p.Type.Equal(op.In(i)) {
				others = append(others, p)
			}
		}
		for _, o := range f.Body.Ops {
			if o == op {
				break
			}
			for _, v := range o.Results {
				if v.Type.Equal(op.In(i)) {
					others = append(others, v)
				}
			}
		}
		op.Operands = slices.Clone(op.Operands)
		op.Operands[i] = others[r.IntN(len(others))]
	case kind == 1 && slices.Contains(binary, op.Name()):
		op.Def = table.Must(binary[r.IntN(len(binary))])
	case kind == 1 && slices.Contains(unary, op.Name()):
		op.Def = table.Must(unary[r.IntN(len(unary))])
	case kind == 2 && len(op.Operands) == 2: // the other way round
		op.Operands = []*ir.Value{op.Operands[1], op.Operands[0]}
	default:
		switch op.Name() {
		case "constant":
			c := op.Attrs.Tensor("value").Clone()
			if c.Len() == 0 || !c.DType.IsFloat() && !c.DType.IsInt() {
				return false
			}
			x := ops.ConvertTensor(c, dtype.F64)
			by := []float64{2, -1, 0.5, 1.1}[r.IntN(4)]
			for i := range x.F64() {
				x.F64()[i] *= by
			}
			op.Attrs = op.Attrs.Set("value", ops.ConvertTensor(x, c.DType))
		case "reduce":
			if r.IntN(2) == 0 {
				op.Attrs = op.Attrs.Set("kind", []string{"sum", "max", "min"}[r.IntN(3)])
			} else {
				op.Attrs = op.Attrs.Set("axes", []int64{r.Int64N(int64(op.In(0).Rank()))})
			}
		case "compare":
			op.Attrs = op.Attrs.Set("dir", []string{"eq", "ne", "lt", "le", "gt", "ge"}[r.IntN(6)])
		case "iota":
			op.Attrs = op.Attrs.Set("dim", r.Int64N(int64(op.Out(0).Rank())))
		case "broadcast":
			dims := slices.Clone(op.Attrs.Ints("dims"))
			r.Shuffle(len(dims), func(i, j int) { dims[i], dims[j] = dims[j], dims[i] })
			op.Attrs = op.Attrs.Set("dims", dims)
		case "transpose":
			perm := slices.Clone(op.Attrs.Ints("perm"))
			r.Shuffle(len(perm), func(i, j int) { perm[i], perm[j] = perm[j], perm[i] })
			op.Attrs = op.Attrs.Set("perm", perm)
		case "slice":
			start := slices.Clone(op.Attrs.Ints("start"))
			d := r.IntN(len(start))
			start[d] = (start[d] + 1) % op.In(0).Shape[d]
			op.Attrs = op.Attrs.Set("start", start)
		case "contract":
			for _, a := range []string{"lhs_batch", "rhs_batch", "lhs_contract", "rhs_contract"} {
				dims := slices.Clone(op.Attrs.Ints(a))
				r.Shuffle(len(dims), func(i, j int) { dims[i], dims[j] = dims[j], dims[i] })
				op.Attrs = op.Attrs.Set(a, dims)
			}
		case "gelu", "softmax", "log_softmax", "take_along":
			return false
		}
	}
	return ir.Verify(m) == nil
}

// mutants holds programs that differ in one or two places from a pattern against what they are raised to: a
// match that is wrong shows as other numbers.
func mutants(t *testing.T, m *ir.Module) {
	t.Helper()
	h := fnv.New64()
	_, _ = h.Write([]byte(m.String()))
	r := rand.New(rand.NewPCG(h.Sum64(), 5))
	n := 6
	if os.Getenv("REPRISE_LONG") != "" {
		n = 300
	}
	for range n {
		before := m.Clone()
		ok := mutate(before, r)
		if ok && r.IntN(3) == 0 {
			ok = mutate(before, r)
		}
		if !ok {
			continue
		}
		after := before.Clone()
		require.NoError(t, raise.Run(after, ops.Table()), before)
		require.NoError(t, ir.Verify(after), before)
		if slices.Equal(names(before), names(after)) {
			continue
		}
		for range 2 {
			args := draw(before.Funcs[0], r)
			want, err := interp.Run(before.Funcs[0], args)
			require.NoError(t, err)
			got, err := interp.Run(after.Funcs[0], args)
			require.NoError(t, err)
			for i := range want {
				if bad := apart(want[i], got[i]); bad > 0 {
					t.Fatalf("result %d: %d of %d elements differ\n%s\n%s\n%v\n%v", i, bad, want[i].Len(), before, after,
						ops.ConvertTensor(want[i], dtype.F64).F64(), ops.ConvertTensor(got[i], dtype.F64).F64())
				}
			}
		}
	}
}

// apart counts the elements that differ by more than rounding can explain. Where the original overflows nothing
// is promised.
func apart(want, got *tensor.Tensor) (bad int) {
	a, b := ops.ConvertTensor(want, dtype.F64).F64(), ops.ConvertTensor(got, dtype.F64).F64()
	tol := 1e-6
	if want.DType != dtype.F64 {
		tol = 5e-3
	}
	if want.DType == dtype.BF16 || want.DType == dtype.F16 {
		tol = 0.1
	}
	if slices.ContainsFunc(a, func(x float64) bool { return math.IsNaN(x) || math.Abs(x) > 1e6 }) {
		return 0
	}
	for k := range a {
		if !(math.Abs(a[k]-b[k]) <= tol*(1+math.Abs(a[k]))) {
			bad++
		}
	}
	return bad
}
