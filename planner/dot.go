package planner

import (
	"fmt"
	"io"
	"sort"
	"strings"

	"gonum.org/v1/gonum/graph"
	"gonum.org/v1/gonum/graph/simple"
)

// Directed returns the ops as a graph: node IDs are op indices, and an edge
// leads from the op that makes a value to each op that reads it.
func (p *Problem) Directed() (graph.Directed, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	g := simple.NewDirectedGraph()
	for i := range p.Ops {
		g.AddNode(simple.Node(int64(i)))
	}
	prod := p.producers()
	for i := range p.Ops {
		for _, v := range p.Ops[i].Inputs {
			if j := prod[v]; j >= 0 && !g.HasEdgeFromTo(int64(j), int64(i)) {
				g.SetEdge(simple.Edge{F: simple.Node(int64(j)), T: simple.Node(int64(i))})
			}
		}
	}
	return g, nil
}

// FromDirected makes a problem of a graph in which each node is an op with one
// value, exact, with the given cost and bytes. Ops are numbered in ascending
// order of node ID, and run in a topological order that prefers low IDs; ids
// gives the node of each op.
func FromDirected(g graph.Directed, cost, bytes func(id int64) int64) (p *Problem, ids []int64, err error) {
	nodes := g.Nodes()
	for nodes.Next() {
		ids = append(ids, nodes.Node().ID())
	}
	sort.Slice(ids, func(a, b int) bool { return ids[a] < ids[b] })
	index := make(map[int64]int, len(ids))
	for k, id := range ids {
		index[id] = k
	}
	p = &Problem{Ops: make([]Op, len(ids)), Values: make([]Value, len(ids))}
	waits := make([]int, len(ids))
	for k, id := range ids {
		name := fmt.Sprint(id)
		p.Values[k] = Value{Name: name, Bytes: bytes(id)}
		o := Op{Name: name, Cost: cost(id), Det: DetExact, Outputs: []int{k}}
		from := g.To(id)
		for from.Next() {
			o.Inputs = append(o.Inputs, index[from.Node().ID()])
		}
		sort.Ints(o.Inputs)
		waits[k] = len(o.Inputs)
		p.Ops[k] = o
	}
	readers := make([][]int, len(ids))
	for k := range p.Ops {
		for _, v := range p.Ops[k].Inputs {
			readers[v] = append(readers[v], k)
		}
	}
	var ready []int
	for k, n := range waits {
		if n == 0 {
			ready = append(ready, k)
		}
	}
	p.Order = []int{}
	for len(ready) > 0 {
		least := 0
		for k := range ready {
			if ready[k] < ready[least] {
				least = k
			}
		}
		x := ready[least]
		ready = append(ready[:least], ready[least+1:]...)
		p.Order = append(p.Order, x)
		for _, y := range readers[x] {
			if waits[y]--; waits[y] == 0 {
				ready = append(ready, y)
			}
		}
	}
	if len(p.Order) < len(ids) {
		p.Order = nil // Validate names the cycle
	}
	return p, ids, p.Validate()
}

// WriteDOT writes the ops for Graphviz, and, if plan is not nil, how often each
// runs: what is computed again has a bold frame.
func (p *Problem) WriteDOT(w io.Writer, plan *Plan) error {
	if err := p.Validate(); err != nil {
		return err
	}
	runs := make([]int, len(p.Ops))
	if plan != nil {
		if _, err := Check(p, &Plan{Order: plan.Order}, -1); err != nil {
			return err
		}
		for _, i := range plan.Order {
			runs[i]++
		}
	}
	quote := func(s string) string {
		return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(s) + `"`
	}
	var s strings.Builder
	s.WriteString("digraph " + quote(p.Name) + " {\n  node [shape=box];\n")
	for i := range p.Ops {
		label := fmt.Sprintf("%s\\ncost %d", strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", " ").Replace(p.Ops[i].Name), p.Ops[i].Cost)
		style := ""
		if runs[i] > 1 {
			label += fmt.Sprintf(" × %d", runs[i])
			style = ", style=bold"
		}
		fmt.Fprintf(&s, "  n%d [label=\"%s\"%s];\n", i, label, style)
	}
	prod := p.producers()
	for i := range p.Ops {
		for _, v := range p.Ops[i].Inputs {
			if j := prod[v]; j >= 0 {
				fmt.Fprintf(&s, "  n%d -> n%d [label=\"%d\"];\n", j, i, p.Values[v].Bytes)
			}
		}
	}
	s.WriteString("}\n")
	_, err := io.WriteString(w, s.String())
	return err
}
