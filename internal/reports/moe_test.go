package reports

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"reprise/frontend"
	"reprise/frontend/nn"
	"reprise/internal/diag"
	"reprise/ir"
	"reprise/ir/dtype"
	"reprise/ir/ops"
	"reprise/runtime"
)

// TestP028: a request: route once outside of the recomputed part, and run only the experts again
// (inclusionAI/AReno#540). That is what a plan does by itself: decisions run once, experts' contractions may run again.
func TestP028(t *testing.T) {
	m := moe(t, 2, 128, 4, 2, 16)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	same(t, all.steps, least.steps)
	least.once()
	for _, o := range []*outcome{all, least} {
		for _, layer := range []string{"layers.0.", "layers.1."} {
			for name, n := range map[string]int{"top_k": 1, "histogram": 1, "argsort": 1} {
				assert.Equal(t, n, o.runs(name, layer), "%s of %s", name, layer)
			}
		}
	}
	// A policy that recomputes the experts gives two runs of their contraction; see policy_test.go.
	for k, st := range least.steps {
		total := int32(0)
		for _, n := range i32s(st["layers.1.moe.tokens"]) {
			total += n
		}
		assert.EqualValues(t, 256*(k+1), total, "tokens counted")
	}
}

// counted is M-MOE of which the loss reads the running counts, as a global balancing loss does.
func counted(t testing.TB, micro int) *frontend.Model {
	t.Helper()
	return accumulated(t, "counted", micro, func(s *nn.Scope) *nn.Tensor {
		x := s.Input("x", dtype.F32, []int64{128, 16}, nn.Normal01)
		var balance *nn.Tensor
		for i := range 2 {
			l := s.Inf("layers.%d", i)
			var n *nn.Tensor
			x, n = moeCounted(l, x, 4, 1)
			counts := l.Cast(n, dtype.F32)
			share := l.Div(counts, l.AddScalar(l.SumAll(counts), 1))
			b := l.SumAll(l.Mul(share, l.Mean(l.Softmax(l.Linear("gate", x, 4)), 0)))
			if balance == nil {
				balance = b
			} else {
				balance = s.Add(balance, b)
			}
		}
		return s.Add(meanSquare(s, x), balance)
	})
}

// TestP036: a balancing loss over several micro-batches was refused together with checkpointing, since recomputation
// would move the counts (pytorch/torchtitan#4772). Counts are versions of a value: each micro-batch's backward reads
// the one of its own forward.
func TestP036(t *testing.T) {
	m := counted(t, 4)
	all := run(t, m, setup{})
	least := run(t, m, smallest())
	same(t, all.steps, least.steps)
	least.once()
	for k, st := range least.steps {
		total := int32(0)
		for _, n := range i32s(st["layers.0.moe.tokens"]) {
			total += n
		}
		assert.EqualValues(t, 128*(k+1), total)
	}
}

// TestP075: a planner could not work with sizes that only the data know (pytorch/pytorch#144095). An expert's number of
// tokens is such a size: its bound is the shape, and the plan holds for every count, the peak being the same.
func TestP075(t *testing.T) {
	const T, d, E = 64, 16, 4
	m := moe(t, 1, T, E, 1, d)
	all, least := run(t, m, setup{}), run(t, m, smallest())
	// Router weights that send all tokens to one expert, none to another, one to a third.
	x := all.input(m.Module.Func("step").Param("x"), 0)
	router := func(kind string) []byte {
		w := make([]byte, 4*d*E)
		set := func(r, c int, v float32) { binary.LittleEndian.PutUint32(w[4*(r*E+c):], math.Float32bits(v)) }
		switch kind {
		case "ties": // all scores equal: the lower index wins
		case "one token elsewhere":
			// Expert 1 likes what is greatest in the first token along its first feature.
			best, at := float32(-1), 0
			for c := range d {
				if v := x.F32()[c]; v > best {
					best, at = v, c
				}
			}
			set(at, 1, 1)
		case "split":
			set(0, 2, 1)
		}
		return w
	}
	seen := map[int32]bool{}
	for _, kind := range []string{"ties", "one token elsewhere", "split"} {
		var got []steps
		for _, o := range []*outcome{all, least} {
			l, err := runtime.Open(o.lib)
			require.NoError(t, err)
			i, err := l.Create(runtime.Options{Seed: 11, Threads: 2})
			require.NoError(t, err)
			require.NoError(t, i.Write("layers.0.moe.router.w", router(kind)))
			st := o.step(i, 0)
			got = append(got, steps{st})
			require.NoError(t, i.Close())
			require.NoError(t, l.Close())
			for _, n := range i32s(st["layers.0.moe.tokens"]) {
				seen[n] = true
			}
		}
		same(t, got[0], got[1])
	}
	assert.True(t, seen[0] && seen[T], "counts seen: %v", seen)
	// Without a bound there is no program: every size is part of a type.
	_, err := ir.Parse(ops.Table(), "open.ir", `module "open"
func @step(%x: f32[?,16] {role="input"}) -> (y) {
  %y = neg %x : f32[?,16] loc(a)
  return %y
}
`)
	e := diag.As(err)
	require.NotNil(t, e)
	assert.Equal(t, 2, e.Line)
	assert.Equal(t, "open.ir", e.File)
}
