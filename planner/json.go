package planner

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
)

// Names of the file formats.
const (
	GraphFormat = "reprise.graph/1"
	PlanFormat  = "reprise.plan/1"
)

// Graph is a problem read from a file, with what the file says besides.
type Graph struct {
	Problem *Problem
	Name    string
	Units   string // what sizes and costs are counted in, if not bytes and ns

	// NoRematPeak is what "100 %" of a budget refers to: what a published graph
	// says, or else the peak of the save-everything plan.
	NoRematPeak int64
	// FirstBackward is the first op of the backward pass, or -1.
	FirstBackward int
}

// whole is an integer in JSON. Numbers such as 1e9 are accepted, fractions are
// not.
type whole int64

func (w *whole) UnmarshalJSON(b []byte) error {
	s := string(b)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		*w = whole(i)
		return nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) {
		return fmt.Errorf("%s is not a number", clip(s))
	}
	if f != math.Trunc(f) {
		return fmt.Errorf("%s is not a whole number", clip(s))
	}
	if f >= math.MaxInt64 || f <= math.MinInt64 {
		return fmt.Errorf("%s does not fit in 63 bits", clip(s))
	}
	*w = whole(f)
	return nil
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// label is a string or a number in JSON.
type label struct {
	text string
	set  bool
}

func (l *label) UnmarshalJSON(b []byte) error {
	s := strings.TrimSpace(string(b))
	if s == "null" {
		return nil
	}
	l.set = true
	if strings.HasPrefix(s, `"`) {
		return json.Unmarshal(b, &l.text)
	}
	var n json.Number
	if err := json.Unmarshal(b, &n); err != nil {
		return fmt.Errorf("%s is neither a string nor a number", clip(s))
	}
	l.text = n.String()
	return nil
}

// ref is a value by index or by name.
type ref struct {
	index  int
	name   string
	byName bool
}

func (r *ref) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		r.byName = true
		return json.Unmarshal(b, &r.name)
	}
	var w whole
	if err := w.UnmarshalJSON(b); err != nil {
		return err
	}
	if w < 0 || w > math.MaxInt32 {
		return fmt.Errorf("%d is not an index", int64(w))
	}
	r.index = int(w)
	return nil
}

type fileOp struct {
	Name      string  `json:"name"`
	Cost      whole   `json:"cost"`
	Workspace whole   `json:"workspace"`
	Inputs    []ref   `json:"inputs"`
	Outputs   []ref   `json:"outputs"`
	InPlace   [][]ref `json:"inplace"`
	Det       string  `json:"det"`
	Effect    string  `json:"effect"`
	Group     label   `json:"group"`
}

type fileValue struct {
	Name     string `json:"name"`
	Bytes    whole  `json:"bytes"`
	Storage  label  `json:"storage"`
	Offset   whole  `json:"offset"`
	Resident bool   `json:"resident"`
	Output   bool   `json:"output"`
	Policy   string `json:"policy"`
}

type fileOffload struct {
	Out  float64 `json:"bytes_per_ns_out"`
	In   float64 `json:"bytes_per_ns_in"`
	Host whole   `json:"host_bytes"`
}

type fileLimit struct {
	Name   string `json:"name"`
	Values []ref  `json:"values"`
	Bytes  whole  `json:"bytes"`
}

type fileGraph struct {
	Format  string       `json:"format"`
	Name    string       `json:"name"`
	Units   string       `json:"units"`
	Ops     []fileOp     `json:"ops"`
	Values  []fileValue  `json:"values"`
	Order   []whole      `json:"order"`
	Gates   []whole      `json:"gates"`
	Limits  []fileLimit  `json:"limits"`
	Offload *fileOffload `json:"offload"`

	// Published graphs: node = op = value.
	RAM           []whole `json:"ram"`
	Cost          []whole `json:"cost"`
	Pred          [][]ref `json:"pred"`
	Pinned        []whole `json:"pinned"`
	FixedRAM      whole   `json:"fixed_ram"`
	NoRematPeak   whole   `json:"no_remat_peak"`
	FirstBackward *whole  `json:"first_backward_or_loss"`
}

// ReadGraph reads a graph file: "reprise.graph/1", or a published graph (ram,
// cost, pred). The problem has been validated.
func ReadGraph(r io.Reader) (*Graph, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("planner: reading a graph: %w", err)
	}
	var f fileGraph
	if err := decode(data, &f); err != nil {
		return nil, err
	}
	var g *Graph
	switch {
	case f.Format == GraphFormat:
		if err := known(data); err != nil {
			return nil, err
		}
		g, err = f.graph()
	case f.Format != "":
		return nil, fmt.Errorf("planner: the file has format %q, want %q", clip(f.Format), GraphFormat)
	case f.RAM != nil || f.Pred != nil:
		g, err = f.published()
	case f.Ops != nil || f.Values != nil:
		return nil, fmt.Errorf("planner: the file has no \"format\"; want %q", GraphFormat)
	default:
		return nil, fmt.Errorf("planner: the file is no graph: it has neither \"format\":%q nor \"ram\", \"cost\" and \"pred\"", GraphFormat)
	}
	if err != nil {
		return nil, err
	}
	if err := g.Problem.Validate(); err != nil {
		return nil, err
	}
	if g.NoRematPeak <= 0 {
		plan, err := saveAll(g.Problem)
		if err != nil {
			return nil, err
		}
		g.NoRematPeak = plan.PeakBytes
	}
	return g, nil
}

// decode unmarshals one JSON document and says where it is broken.
func decode(data []byte, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(into); err != nil {
		if err == io.EOF {
			return fmt.Errorf("planner: the file is empty; want a JSON document")
		}
		at := dec.InputOffset()
		if se, ok := err.(*json.SyntaxError); ok {
			at = se.Offset
		}
		line := 1 + bytes.Count(data[:min(int(at), len(data))], []byte("\n"))
		if te, ok := err.(*json.UnmarshalTypeError); ok {
			what := "the document"
			if te.Field != "" {
				what = strconv.Quote(te.Field)
			}
			return fmt.Errorf("planner: line %d: %s has a value of kind %s, which does not belong there", line, what, te.Value)
		}
		return fmt.Errorf("planner: line %d: %w", line, err)
	}
	if dec.More() {
		return fmt.Errorf("planner: there is more after the JSON document")
	}
	return nil
}

// known refuses a graph with a field that is none of ours: "input" for "inputs" would give another graph.
func known(data []byte) error {
	strict := func(data []byte, into any) error {
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		return dec.Decode(into)
	}
	err := strict(data, &fileGraph{})
	if err == nil {
		return nil
	}
	said := strings.TrimPrefix(err.Error(), "json: ")
	var parts struct{ Ops, Values []json.RawMessage } // the decoder does not say in which of them
	if json.Unmarshal(data, &parts) == nil {
		for i, raw := range parts.Ops {
			var o fileOp
			if strict(raw, &o) != nil {
				_ = json.Unmarshal(raw, &o) // for the name alone
				return fmt.Errorf("planner: op %d %q: %s", i, clip(o.Name), said)
			}
		}
		for i, raw := range parts.Values {
			var v fileValue
			if strict(raw, &v) != nil {
				_ = json.Unmarshal(raw, &v)
				return fmt.Errorf("planner: value %d %q: %s", i, clip(v.Name), said)
			}
		}
	}
	return fmt.Errorf("planner: %s", said)
}

func (f *fileGraph) graph() (*Graph, error) {
	p := &Problem{Name: f.Name, Ops: make([]Op, len(f.Ops)), Values: make([]Value, len(f.Values))}
	byName := make(map[string]int)
	twice := make(map[string]bool)
	storages := make(map[string]int)
	for i, v := range f.Values {
		policy, err := ParsePolicy(v.Policy)
		if err != nil {
			return nil, fmt.Errorf("planner: value %d %q: %w", i, v.Name, err)
		}
		p.Values[i] = Value{Name: v.Name, Bytes: int64(v.Bytes), Offset: int64(v.Offset), Resident: v.Resident, Output: v.Output, Policy: policy}
		if v.Storage.set {
			id, ok := storages[v.Storage.text]
			if !ok {
				id = len(storages) + 1
				storages[v.Storage.text] = id
			}
			p.Values[i].Storage = id
		}
		if _, ok := byName[v.Name]; ok {
			twice[v.Name] = true
		}
		byName[v.Name] = i
	}
	called := func(what string, i int, name string, r ref) (int, error) {
		if !r.byName {
			return r.index, nil
		}
		v, ok := byName[r.name]
		if !ok {
			return 0, fmt.Errorf("planner: %s %d %q names value %q, which does not exist", what, i, name, clip(r.name))
		}
		if twice[r.name] {
			return 0, fmt.Errorf("planner: %s %d %q names value %q, and there are several of that name", what, i, name, clip(r.name))
		}
		return v, nil
	}
	find := func(i int, r ref) (int, error) { return called("op", i, f.Ops[i].Name, r) }
	for i := range f.Ops {
		fo := &f.Ops[i]
		o := &p.Ops[i]
		*o = Op{Name: fo.Name, Cost: int64(fo.Cost), Workspace: int64(fo.Workspace), Group: fo.Group.text}
		var err error
		if fo.Det != "" {
			if o.Det, err = ParseDet(fo.Det); err != nil {
				return nil, fmt.Errorf("planner: op %d %q: %w", i, fo.Name, err)
			}
		}
		if fo.Effect != "" {
			if o.Effect, err = ParseEffect(fo.Effect); err != nil {
				return nil, fmt.Errorf("planner: op %d %q: %w", i, fo.Name, err)
			}
		}
		for _, r := range fo.Inputs {
			v, err := find(i, r)
			if err != nil {
				return nil, err
			}
			o.Inputs = append(o.Inputs, v)
		}
		for _, r := range fo.Outputs {
			v, err := find(i, r)
			if err != nil {
				return nil, err
			}
			o.Outputs = append(o.Outputs, v)
		}
		for _, pr := range fo.InPlace {
			if len(pr) != 2 {
				return nil, fmt.Errorf("planner: op %d %q has an in-place pair of %d values", i, fo.Name, len(pr))
			}
			a, err := find(i, pr[0])
			if err != nil {
				return nil, err
			}
			b, err := find(i, pr[1])
			if err != nil {
				return nil, err
			}
			o.InPlace = append(o.InPlace, [2]int{a, b})
		}
	}
	if f.Order != nil {
		p.Order = make([]int, len(f.Order))
		for k, x := range f.Order {
			if x < 0 || x > math.MaxInt32 {
				return nil, fmt.Errorf("planner: entry %d of the order is op %d", k, int64(x))
			}
			p.Order[k] = int(x)
		}
	}
	for k, g := range f.Gates {
		if g < 0 || g > math.MaxInt32 {
			return nil, fmt.Errorf("planner: entry %d of the gates, %d, is not an op", k, int64(g))
		}
		p.Gates = append(p.Gates, int(g))
	}
	for k, fl := range f.Limits {
		l := Limit{Name: fl.Name, Bytes: int64(fl.Bytes)}
		for _, r := range fl.Values {
			v, err := called("limit", k, fl.Name, r)
			if err != nil {
				return nil, err
			}
			l.Values = append(l.Values, v)
		}
		p.Limits = append(p.Limits, l)
	}
	if f.Offload != nil {
		p.Offload = &Offload{BytesPerNsOut: f.Offload.Out, BytesPerNsIn: f.Offload.In, HostBytes: int64(f.Offload.Host)}
	}
	g := &Graph{Problem: p, Name: f.Name, Units: f.Units, FirstBackward: -1, NoRematPeak: int64(f.NoRematPeak)}
	return g, f.backward(g)
}

// backward takes over the first op of the backward part; -1 says that there is none.
func (f *fileGraph) backward(g *Graph) error {
	if f.FirstBackward == nil {
		return nil
	}
	if b, n := int64(*f.FirstBackward), len(g.Problem.Ops); b < -1 || b >= int64(n) {
		return fmt.Errorf("planner: \"first_backward_or_loss\" is op %d; there are ops 0 to %d", b, n-1)
	}
	g.FirstBackward = int(*f.FirstBackward)
	return nil
}

// published turns a graph in which a node is an op and its one value into a
// problem. fixed_ram becomes a resident value that no op reads.
func (f *fileGraph) published() (*Graph, error) {
	n := len(f.RAM)
	if len(f.Cost) != n || len(f.Pred) != n {
		return nil, fmt.Errorf("planner: \"ram\", \"cost\" and \"pred\" have %d, %d and %d entries", n, len(f.Cost), len(f.Pred))
	}
	p := &Problem{Name: f.Name, Ops: make([]Op, n), Values: make([]Value, n)}
	for i := 0; i < n; i++ {
		p.Values[i] = Value{Name: strconv.Itoa(i), Bytes: int64(f.RAM[i])}
		p.Ops[i] = Op{Name: strconv.Itoa(i), Cost: int64(f.Cost[i]), Outputs: []int{i}, Det: DetExact}
		for _, r := range f.Pred[i] {
			if r.byName || r.index >= n {
				return nil, fmt.Errorf("planner: \"pred\" of node %d has an entry that is no node", i)
			}
			p.Ops[i].Inputs = append(p.Ops[i].Inputs, r.index)
		}
	}
	for _, x := range f.Pinned {
		if x < 0 || int(x) >= n {
			return nil, fmt.Errorf("planner: \"pinned\" has %d; there are nodes 0 to %d", int64(x), n-1)
		}
		p.Ops[x].Det = DetUnknown
	}
	if f.FixedRAM != 0 {
		p.Values = append(p.Values, Value{Name: "fixed", Bytes: int64(f.FixedRAM), Resident: true})
	}
	g := &Graph{Problem: p, Name: f.Name, Units: f.Units, NoRematPeak: int64(f.NoRematPeak), FirstBackward: -1}
	return g, f.backward(g)
}

// WriteGraph writes p as "reprise.graph/1". Reading it back gives an equal
// problem, up to the numbering of storages.
func WriteGraph(w io.Writer, p *Problem) error {
	type op struct {
		Name      string   `json:"name"`
		Cost      int64    `json:"cost"`
		Workspace int64    `json:"workspace"`
		Inputs    []int    `json:"inputs"`
		Outputs   []int    `json:"outputs"`
		InPlace   [][2]int `json:"inplace"`
		Det       string   `json:"det"`
		Effect    string   `json:"effect"`
		Group     string   `json:"group"`
	}
	type value struct {
		Name     string `json:"name"`
		Bytes    int64  `json:"bytes"`
		Storage  *int   `json:"storage,omitempty"`
		Offset   int64  `json:"offset,omitempty"`
		Resident bool   `json:"resident"`
		Output   bool   `json:"output"`
		Policy   string `json:"policy"`
	}
	type offload struct {
		Out  float64 `json:"bytes_per_ns_out"`
		In   float64 `json:"bytes_per_ns_in"`
		Host int64   `json:"host_bytes"`
	}
	type limit struct {
		Name   string `json:"name"`
		Values []int  `json:"values"`
		Bytes  int64  `json:"bytes"`
	}
	doc := struct {
		Format  string   `json:"format"`
		Name    string   `json:"name"`
		Ops     []op     `json:"ops"`
		Values  []value  `json:"values"`
		Order   []int    `json:"order"`
		Gates   []int    `json:"gates,omitempty"`
		Limits  []limit  `json:"limits,omitempty"`
		Offload *offload `json:"offload,omitempty"`
	}{Format: GraphFormat, Name: p.Name, Ops: []op{}, Values: []value{}, Order: append([]int{}, p.order()...), Gates: p.Gates}
	for i := range p.Ops {
		o := &p.Ops[i]
		doc.Ops = append(doc.Ops, op{o.Name, o.Cost, o.Workspace, append([]int{}, o.Inputs...), append([]int{}, o.Outputs...),
			append([][2]int{}, o.InPlace...), o.Det.String(), o.Effect.String(), o.Group})
	}
	for i := range p.Values {
		v := &p.Values[i]
		fv := value{Name: v.Name, Bytes: v.Bytes, Offset: v.Offset, Resident: v.Resident, Output: v.Output, Policy: v.Policy.String()}
		if v.Storage != 0 {
			s := v.Storage
			fv.Storage = &s
		}
		doc.Values = append(doc.Values, fv)
	}
	for _, l := range p.Limits {
		doc.Limits = append(doc.Limits, limit{l.Name, append([]int{}, l.Values...), l.Bytes})
	}
	if f := p.Offload; f != nil {
		doc.Offload = &offload{f.BytesPerNsOut, f.BytesPerNsIn, f.HostBytes}
	}
	return json.NewEncoder(w).Encode(doc)
}

type filePlan struct {
	Format      string      `json:"format"`
	Order       []int       `json:"order"`
	Cost        int64       `json:"cost"`
	BaseCost    int64       `json:"base_cost"`
	Overhead    float64     `json:"overhead"`
	PeakBytes   int64       `json:"peak_bytes"`
	BudgetBytes int64       `json:"budget_bytes"`
	LowerBound  int64       `json:"lower_bound"`
	Gap         float64     `json:"gap"`
	Proof       string      `json:"proof"`
	Transfers   []Transfer  `json:"transfers,omitempty"`
	Stall       int64       `json:"stall,omitempty"`
	HostBytes   int64       `json:"host_bytes,omitempty"`
	Offsets     []Placement `json:"offsets"`
	ArenaBytes  int64       `json:"arena_bytes"`
	Seconds     float64     `json:"seconds"`
	Steps       int64       `json:"steps"`
	Solver      string      `json:"solver"`
	Seed        uint64      `json:"seed"`
}

// WritePlan writes a plan as "reprise.plan/1".
func WritePlan(w io.Writer, pl *Plan) error {
	return json.NewEncoder(w).Encode(filePlan{PlanFormat, append([]int{}, pl.Order...), pl.Cost, pl.BaseCost, pl.Overhead, pl.PeakBytes,
		pl.BudgetBytes, pl.LowerBound, pl.Gap, pl.Proof, pl.Transfers, pl.Stall, pl.HostBytes, pl.Offsets, pl.ArenaBytes, pl.Seconds, pl.Steps, pl.Solver, pl.Seed})
}

// ReadPlan reads a plan file. Only Check can say whether the plan is legal.
func ReadPlan(r io.Reader) (*Plan, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("planner: reading a plan: %w", err)
	}
	var f filePlan
	if err := decode(data, &f); err != nil {
		return nil, err
	}
	if f.Format != PlanFormat {
		return nil, fmt.Errorf("planner: the file has format %q, want %q", clip(f.Format), PlanFormat)
	}
	if f.Order == nil {
		return nil, fmt.Errorf("planner: the plan has no \"order\"")
	}
	return &Plan{Order: f.Order, Cost: f.Cost, BaseCost: f.BaseCost, PeakBytes: f.PeakBytes, BudgetBytes: f.BudgetBytes,
		LowerBound: f.LowerBound, Overhead: f.Overhead, Gap: f.Gap, Proof: f.Proof, Transfers: f.Transfers, Stall: f.Stall, HostBytes: f.HostBytes, Offsets: f.Offsets, ArenaBytes: f.ArenaBytes,
		Seconds: f.Seconds, Steps: f.Steps, Solver: f.Solver, Seed: f.Seed}, nil
}
