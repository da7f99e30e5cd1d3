package planner

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"reprise/planner"
)

// Model is a transformer by its published shapes.
type Model struct {
	Name     string
	Layers   int64
	Hidden   int64
	Heads    int64
	KVHeads  int64
	HeadDim  int64
	FFN      int64 // of one expert
	Active   int64 // experts that a token visits, 1 for a dense model
	Vocab    int64
	Sequence int64
	Batch    int64
}

// Models lists what is simulated: one device's share of a training step with
// the shapes that were published (Llama 3, arXiv 2407.21783; Llama 4 Scout's
// 17B active, 16 experts). Sequence 8192, batch 1.
func Models() []Model {
	return []Model{
		{"Llama-3 8B", 32, 4096, 32, 8, 128, 14336, 1, 128256, 8192, 1},
		{"Llama-3 70B", 80, 8192, 64, 8, 128, 28672, 1, 128256, 8192, 1},
		{"Llama-3 405B", 126, 16384, 128, 8, 128, 53248, 1, 128256, 8192, 1},
		{"17B×16 experts", 48, 5120, 40, 8, 128, 8192, 2, 202048, 8192, 1},
	}
}

// Graph generates the kernel-grain training step of a model: fused kernels as
// units, bf16 activations, activations only (weights, gradients and optimizer
// state are sharded over other devices and the same for every policy).
//
// Cost model, in nanoseconds of a device with 400 TFLOP/s in matrix products
// and 3 TB/s of memory: the larger of flops and bytes, plus 3 µs for the start
// of a kernel. A backward kernel of a matrix product costs twice its forward.
func (m Model) Graph() (*planner.Problem, int) {
	p := &planner.Problem{Name: m.Name}
	tokens := m.Sequence * m.Batch
	const elem = 2
	add := func(name, group string, flops, bytes, out int64, det planner.Det, in ...int) int {
		ns := max(flops/400_000, bytes/3_000) + 3_000
		p.Values = append(p.Values, planner.Value{Name: name, Bytes: out})
		v := len(p.Values) - 1
		p.Ops = append(p.Ops, planner.Op{Name: name, Group: group, Cost: ns, Det: det, Inputs: append([]int{}, in...), Outputs: []int{v}})
		return v
	}
	h := tokens * m.Hidden * elem
	q := tokens * m.Heads * m.HeadDim * elem
	kv := tokens * m.KVHeads * m.HeadDim * elem
	ffn := tokens * m.FFN * m.Active * elem
	mm := func(k, n int64) int64 { return 2 * tokens * k * n }
	type layer struct{ x, n1, qkv, a, lse, o, x1, n2, gu, act, route int }
	var ls []layer
	exact, decides := planner.DetExact, planner.DetDecides
	x := add("embed", "embed", 0, 2*h, h, exact)
	for i := int64(0); i < m.Layers; i++ {
		g := fmt.Sprintf("layers.%d", i)
		var l layer
		l.x = x
		l.n1 = add(g+".norm1", g, 0, 2*h, h, exact, x)
		l.qkv = add(g+".qkv", g, mm(m.Hidden, (m.Heads+2*m.KVHeads)*m.HeadDim), h+q+2*kv, q+2*kv, exact, l.n1)
		att := 2 * 2 * m.Batch * m.Heads * m.HeadDim * m.Sequence * m.Sequence / 2
		l.a = add(g+".attention", g, att, 2*q+2*kv, q+tokens*m.Heads*4, exact, l.qkv)
		l.o = add(g+".proj", g, mm(m.Heads*m.HeadDim, m.Hidden), q+h, h, exact, l.a)
		l.x1 = add(g+".add1", g, 0, 3*h, h, exact, x, l.o)
		l.n2 = add(g+".norm2", g, 0, 2*h, h, exact, l.x1)
		in := []int{l.n2}
		if m.Active > 1 {
			l.route = add(g+".router", g, mm(m.Hidden, 16), h, tokens*16, decides, l.n2)
			in = append(in, l.route)
		}
		l.gu = add(g+".gate_up", g, mm(m.Hidden, 2*m.FFN*m.Active), h+2*ffn, 2*ffn, exact, in...)
		l.act = add(g+".swiglu", g, 0, 3*ffn, ffn, exact, l.gu)
		down := add(g+".down", g, mm(m.FFN*m.Active, m.Hidden), ffn+h, h, exact, l.act)
		x = add(g+".add2", g, 0, 3*h, h, exact, l.x1, down)
		ls = append(ls, l)
	}
	norm := add("norm", "head", 0, 2*h, h, exact, x)
	// The loss is computed in chunks with its gradient, as large vocabularies
	// ask for; it keeps no logits.
	loss := add("head+loss", "head", 3*mm(m.Hidden, m.Vocab), 3*h, h, exact, norm)
	boundary := len(p.Ops) - 1
	g := add("d.norm", "d.head", 0, 3*h, h, exact, loss, x)
	for i := len(ls) - 1; i >= 0; i-- {
		l := ls[i]
		n := fmt.Sprintf("d.layers.%d", i)
		add(n+".w_down", n, mm(m.FFN*m.Active, m.Hidden), ffn+h, 0, exact, l.act, g)
		dact := add(n+".down", n, mm(m.FFN*m.Active, m.Hidden), ffn+h, ffn, exact, g)
		dgu := add(n+".swiglu", n, 0, 5*ffn, 2*ffn, exact, l.gu, dact)
		in := []int{l.n2, dgu}
		if m.Active > 1 {
			in = append(in, l.route)
		}
		add(n+".w_gate_up", n, mm(m.Hidden, 2*m.FFN*m.Active), h+2*ffn, 0, exact, in...)
		dn2 := add(n+".gate_up", n, mm(m.Hidden, 2*m.FFN*m.Active), h+2*ffn, h, exact, dgu)
		dx1 := add(n+".norm2", n, 0, 4*h, h, exact, l.x1, dn2, g)
		add(n+".w_proj", n, mm(m.Heads*m.HeadDim, m.Hidden), q+h, 0, exact, l.a, dx1)
		da := add(n+".proj", n, mm(m.Heads*m.HeadDim, m.Hidden), q+h, q, exact, dx1)
		att := 5 * 2 * m.Batch * m.Heads * m.HeadDim * m.Sequence * m.Sequence / 2
		dqkv := add(n+".attention", n, att, 4*q+4*kv, q+2*kv, exact, l.qkv, l.a, da)
		add(n+".w_qkv", n, mm(m.Hidden, (m.Heads+2*m.KVHeads)*m.HeadDim), h+q+2*kv, 0, exact, l.n1, dqkv)
		dn1 := add(n+".qkv", n, mm(m.Hidden, (m.Heads+2*m.KVHeads)*m.HeadDim), h+q+2*kv, h, exact, dqkv)
		g = add(n+".norm1", n, 0, 4*h, h, exact, l.x, dn1, dx1)
	}
	add("d.embed", "d.embed", 0, 2*h, 0, exact, g)
	return p, boundary
}

// models compares policies on the generated graphs.
func models(_ context.Context, opt Options) ([]task, error) {
	var list []task
	for _, m := range Models() {
		p, boundary := m.Graph()
		all := planner.SaveAll(p)
		for _, share := range []int64{75, 50, 25, 10} {
			list = append(list, task{Row{Case: m.Name, Ops: len(p.Ops), Budget: fmt.Sprintf("%d %%", share), Goal: "least of all policies"}, func(ctx context.Context, r *Row) error {
				budget := all.PeakBytes * share / 100
				least := -1.0
				for _, b := range planner.Baselines() {
					plan, err := planner.PlanBaseline(ctx, p, b.Name, budget, boundary)
					if errors.Is(err, planner.ErrOverBudget) || errors.Is(err, planner.ErrNoChain) {
						continue
					}
					if err != nil {
						return err
					}
					if r.Published != "" {
						r.Published += ", "
					}
					r.Published += fmt.Sprintf("%s %.2f", b.Name, 100*plan.Overhead)
					if o := 100 * plan.Overhead; least < 0 || o < least {
						least = o
					}
				}
				if solve(ctx, r, p, planner.Options{Budget: budget, Steps: opt.Steps}) != nil {
					r.Met = least < 0 || r.Overhead <= least+1e-9
				}
				return nil
			}})
		}
	}
	return list, nil
}

// saving is a policy of others, as the values of a layer that it keeps. What
// goes from layer to layer is kept by all of them.
type saving struct {
	name string
	keep func(layer int, op string) bool
}

// savings lists the policies with fixed choices. Our kernels are coarser than
// their operators: attention is one kernel that keeps no scores, q, k, v are one
// product, and so are gate and up.
func savings() []saving {
	return []saving{
		{"Megatron full, every layer; torchtitan full", func(int, string) bool { return false }},
		{"Megatron selective (all but core attention)", func(_ int, op string) bool { return op != "attention" }},
		{"torchtitan selective op (attention, every second product)", func(_ int, op string) bool {
			return op == "attention" || op == "qkv" || op == "gate_up"
		}},
		{"torchtitan selective 2 (every second layer)", func(layer int, _ string) bool { return layer%2 == 1 }},
		{"save dots (all products)", func(_ int, op string) bool {
			return op == "attention" || op == "qkv" || op == "proj" || op == "gate_up" || op == "down"
		}},
	}
}

// policies asks what each policy needs and costs, and what the planner does with
// the same bytes.
func policies(ctx context.Context, opt Options) ([]task, error) {
	var list []task
	for _, m := range Models() {
		p, boundary := m.Graph()
		all := planner.SaveAll(p)
		for _, s := range savings() {
			keep := make([]bool, len(p.Values))
			for i := range p.Ops[:boundary] {
				layer, op := -1, ""
				if _, err := fmt.Sscanf(p.Ops[i].Group, "layers.%d", &layer); err == nil {
					op = p.Ops[i].Name[strings.LastIndex(p.Ops[i].Name, ".")+1:]
				}
				// The input of each layer, and what may not run twice.
				keep[p.Ops[i].Outputs[0]] = layer < 0 || op == "add2" || op == "router" || s.keep(layer, op)
			}
			theirs, err := planner.PlanSaving(ctx, p, keep, boundary)
			if err != nil {
				return nil, err
			}
			list = append(list, task{Row{Case: m.Name + ": " + s.name, Ops: len(p.Ops), Goal: "not above the policy",
				Budget:    fmt.Sprintf("%.1f %%", 100*float64(theirs.PeakBytes)/float64(all.PeakBytes)),
				Published: fmt.Sprintf("the policy: %.3f", 100*theirs.Overhead)}, func(ctx context.Context, r *Row) error {
				plan := solve(ctx, r, p, planner.Options{Budget: theirs.PeakBytes, Steps: opt.Steps, Gap: 2e-4})
				r.Met = plan != nil && plan.Cost <= theirs.Cost
				return nil
			}})
		}
	}
	return list, nil
}

// scaling plans graphs of three families at about 500 to 50,000 ops.
func scaling(_ context.Context, opt Options) ([]task, error) {
	var list []task
	add := func(name, budget string, share int64, build func() (*planner.Problem, error)) {
		list = append(list, task{Row{Case: name, Budget: budget, Goal: "gap ≤ 0.2"}, func(ctx context.Context, r *Row) error {
			p, err := build()
			if err != nil {
				return err
			}
			r.Ops = len(p.Ops)
			solve(ctx, r, p, planner.Options{Budget: planner.SaveAll(p).PeakBytes * share / 100, Steps: opt.Steps, Gap: 1e-3})
			r.Met = r.Error == "" && r.Gap <= 0.2
			return nil
		}})
	}
	for _, layers := range []int64{22, 70, 227, 720, 2272} {
		m := Models()[0]
		m.Layers = layers
		add(fmt.Sprintf("Llama-3 8B, %d layers", layers), "50 %", 50, func() (*planner.Problem, error) { p, _ := m.Graph(); return p, nil })
	}
	for _, layers := range []int{12, 48, 144, 1470} {
		add(fmt.Sprintf("synth_transformer, %d layers", layers), "30 %", 30, func() (*planner.Problem, error) {
			g, err := graph(opt.Data, fmt.Sprintf("synth_transformer_%d", layers))
			if err != nil {
				return nil, err
			}
			return g.Problem, nil
		})
	}
	for _, stages := range []int{250, 790, 2500, 7900, 25000} {
		add(fmt.Sprintf("chain, %d stages", stages), "50 %", 50, func() (*planner.Problem, error) { return chain(stages), nil })
	}
	return list, nil
}

// chain is a network of stages of four sizes, one after the other, whose backward part reads what each stage made and what it read.
func chain(stages int) *planner.Problem {
	p := &planner.Problem{Name: fmt.Sprintf("chain of %d", stages)}
	add := func(name string, cost, bytes int64, in ...int) int {
		p.Values = append(p.Values, planner.Value{Name: name, Bytes: bytes})
		p.Ops = append(p.Ops, planner.Op{Name: name, Cost: cost, Det: planner.DetExact, Inputs: in, Outputs: []int{len(p.Values) - 1}})
		return len(p.Values) - 1
	}
	sizes, costs := []int64{4096, 1024, 16384, 4096}, []int64{900, 100, 2500, 150}
	x := add("in", 0, 4096)
	xs := []int{x}
	for i := range stages {
		x = add(fmt.Sprintf("f%d", i), costs[i%4], sizes[i%4], x)
		xs = append(xs, x)
	}
	g := add("loss", 1, 4096, x)
	for i := stages - 1; i >= 0; i-- {
		g = add(fmt.Sprintf("d%d", i), 2*costs[i%4], sizes[(i+3)%4], xs[i], xs[i+1], g)
	}
	return p
}
