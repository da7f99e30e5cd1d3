package autodiff_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"reprise/ir"
	"reprise/ir/ops"
)

// grower appends random smooth ops to a block, keeping all values made so far for later
// use, so that values fan out and paths join.
type grower struct {
	b     B
	r     *rand.Rand
	pool  []V
	depth int
}

func (g *grower) pick() V { return g.pool[g.r.IntN(len(g.pool))] }

// like finds a value of v's shape other than by chance v itself.
func (g *grower) like(v V) V {
	var same []V
	for _, x := range g.pool {
		if x.Type.Equal(v.Type) {
			same = append(same, x)
		}
	}
	return same[g.r.IntN(len(same))]
}

// tame keeps values of order one: sin.
func (g *grower) tame(v V) V { return g.b.Op("sin", []V{v}) }

func (g *grower) grow() {
	b, x := g.b, g.pick()
	rank := int64(x.Type.Rank())
	var y V
	switch g.r.IntN(14) {
	case 0, 1:
		y = b.Op([]string{"sin", "tanh", "logistic", "erf", "cos"}[g.r.IntN(5)], []V{x})
	case 2, 3:
		y = b.Op([]string{"add", "sub", "mul"}[g.r.IntN(3)], []V{x, g.like(x)})
	case 4:
		y = b.Op("fma", []V{x, g.like(x), g.like(x)})
	case 5:
		if rank == 0 || rank > 3 {
			return
		}
		y = b.Op("softmax", []V{x}, ir.A("axis", g.r.Int64N(rank)))
	case 6:
		if rank == 0 {
			return
		}
		y = g.tame(b.Op("reduce", []V{x}, ir.A("kind", "sum"), ir.A("axes", []int64{g.r.Int64N(rank)})))
	case 7:
		if rank > 2 {
			return
		}
		at := g.r.Int64N(rank + 1)
		shape, d := []int64{}, []int64{}
		for i := int64(0); i <= rank; i++ {
			if i == at {
				shape = append(shape, 2)
			} else {
				d = append(d, i)
				shape = append(shape, x.Type.Shape[len(d)-1])
			}
		}
		y = b.Op("broadcast", []V{x}, ir.A("dims", d), ir.A("shape", shape))
	case 8:
		if rank < 2 {
			return
		}
		perm := make([]int64, rank)
		for i, p := range g.r.Perm(int(rank)) {
			perm[i] = int64(p)
		}
		y = b.Op("transpose", []V{x}, ir.A("perm", perm))
	case 9: // contraction with anything over all dimensions of equal size and place
		z := g.pick()
		var lc, rc []int64
		for i := range min(rank, int64(z.Type.Rank())) {
			if x.Type.Shape[i] == z.Type.Shape[i] {
				lc, rc = append(lc, i), append(rc, i)
			}
		}
		if x.Type.Rank()+z.Type.Rank()-2*len(lc) > 3 {
			return
		}
		y = g.tame(b.Op("contract", []V{x, z}, ir.A("lhs_contract", lc), ir.A("rhs_contract", rc)))
	case 10:
		if rank == 0 || x.Type.Shape[0] < 2 {
			return
		}
		start, limit := make([]int64, rank), append([]int64{}, x.Type.Shape...)
		start[0] = 1
		y = b.Op("concat", []V{b.Op("slice", []V{x}, ir.A("start", start), ir.A("limit", limit)), x}, ir.A("dim", 0))
	case 11:
		if rank == 0 {
			return
		}
		zeros := make([]int64, rank)
		ones := append([]int64{}, zeros...)
		ones[rank-1] = 1
		y = b.Op("pad", []V{x, b.Op("reduce", []V{g.pool[0]}, ir.A("kind", "sum"), ir.A("axes", allOf(g.pool[0])))}, ir.A("low", ones), ir.A("high", zeros))
	case 12:
		if g.depth > 0 {
			return
		}
		args := []V{x, g.like(x)}
		n := []int64{2, 17}[g.r.IntN(2)]
		y = counted(b, n, args, func(b B, _ V, p []V) []V {
			in := &grower{b: b, r: g.r, pool: append([]V{}, p...), depth: 1}
			for range 3 {
				in.grow()
			}
			return []V{in.tame(in.like(p[0])), []V{p[1], in.like(p[1])}[g.r.IntN(2)]}
		})[g.r.IntN(2)]
	case 13:
		if g.depth > 0 {
			return
		}
		args := []V{x, g.like(x)}
		arm := func(b B, p []V) []V {
			in := &grower{b: b, r: g.r, pool: append([]V{}, p...), depth: 1}
			for range 3 {
				in.grow()
			}
			return []V{in.like(p[0])}
		}
		zero := b.Op("reduce", []V{x}, ir.A("kind", "sum"), ir.A("axes", allOf(x)))
		pred := b.Op("compare", []V{zero, b.Op("sub", []V{zero, zero})}, ir.A("dir", "gt"))
		y = b.Multi("if", append([]V{pred}, args...), []*ir.Block{region(b, args, arm), region(b, args, arm)}).Results[0]
	}
	g.pool = append(g.pool, y)
}

func allOf(v V) []int64 {
	axes := make([]int64, v.Type.Rank())
	for i := range axes {
		axes[i] = int64(i)
	}
	return axes
}

// Random programs, with fan-out, joins, loops and branches: first and second derivatives
// agree with central differences.
func TestRandomPrograms(t *testing.T) {
	tab := ops.Table()
	count := uint64(60)
	if testing.Short() {
		count = 15
	}
	for seed := range count {
		r := rand.New(rand.NewPCG(seed, 77))
		s := []int64{1 + r.Int64N(3), 2}
		c := gradCase{params: []param{f64p(-1, 1, s...), f64p(-1, 1, s...), f64p(-1, 1)}, tol: 1e-4}
		c.build = func(b B, x []V) []V {
			r := rand.New(rand.NewPCG(seed, 78))
			g := &grower{b: b, r: r, pool: append([]V{}, x...)}
			for range 14 {
				g.grow()
			}
			return g.pool[max(3, len(g.pool)-3):]
		}
		for _, second := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d/%v", seed, second), func(t *testing.T) {
				checkGradient(t, c, program(t, tab, c, second, seed), seed)
			})
		}
	}
}
