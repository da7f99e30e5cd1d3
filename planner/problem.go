package planner

import (
	"fmt"
	"math"
)

// Det says what running an op a second time gives.
type Det uint8

// Determinism classes. The zero value is the safe one: an op that says nothing
// runs once.
const (
	DetUnknown Det = iota // nothing is known: runs once
	DetExact              // the same bits every time: may run again
	DetKeyed              // random, but a function of a key it reads: may run again
	DetTol                // equal up to a tolerance only: runs once
	DetDecides            // takes a discrete decision (top-k, argmax, sampling): runs once
)

var detWords = [...]string{"unknown", "exact", "keyed", "tol", "decides"}

// String gives the word that graph files use.
func (d Det) String() string {
	if int(d) < len(detWords) {
		return detWords[d]
	}
	return fmt.Sprintf("Det(%d)", uint8(d))
}

// ParseDet reads a word of a graph file.
func ParseDet(s string) (Det, error) {
	for i, w := range detWords {
		if w == s {
			return Det(i), nil
		}
	}
	return DetUnknown, fmt.Errorf("unknown determinism %q (want exact, keyed, tol, decides or unknown)", s)
}

// Effect says what an op does beyond computing its outputs.
type Effect uint8

// Effects. Every op with an effect runs exactly once.
const (
	EffectNone   Effect = iota
	EffectReads         // reads state that is not among its inputs
	EffectWrites        // writes state, in place or hidden
	EffectComm          // a collective or point-to-point message
	EffectHost          // a callback into the host program
)

var effectWords = [...]string{"none", "reads", "writes", "comm", "host"}

// String gives the word that graph files use.
func (e Effect) String() string {
	if int(e) < len(effectWords) {
		return effectWords[e]
	}
	return fmt.Sprintf("Effect(%d)", uint8(e))
}

// ParseEffect reads a word of a graph file.
func ParseEffect(s string) (Effect, error) {
	for i, w := range effectWords {
		if w == s {
			return Effect(i), nil
		}
	}
	return EffectNone, fmt.Errorf("unknown effect %q (want none, reads, writes, comm or host)", s)
}

// Policy is what the owner of the graph wants to happen to a value.
type Policy uint8

// Policies. "Must" is a constraint that Check enforces; "prefer" biases the
// search and never makes a plan illegal.
const (
	PolicyNone      Policy = iota
	PreferSave             // its op counts as dearer than it is while searching
	PreferRecompute        // its op counts as cheaper than it is while searching
	PreferOffload          // moved to the host before anything else is
	MustSave               // its op runs once
	MustRecompute          // not in memory across a gate, see Problem.Gates; without gates: its op runs at least twice, if it has two uses
	MustOffload            // moved to the host at least once, if it has two uses
)

var policyWords = [...]string{"", "prefer-save", "prefer-recompute", "prefer-offload",
	"must-save", "must-recompute", "must-offload"}

// String gives the word that graph files use; PolicyNone is "none".
func (p Policy) String() string {
	if p == PolicyNone {
		return "none"
	}
	if int(p) < len(policyWords) {
		return policyWords[p]
	}
	return fmt.Sprintf("Policy(%d)", uint8(p))
}

// Saves reports whether p wants a value in memory, on some device, once it is made.
func (p Policy) Saves() bool {
	switch p {
	case MustSave, PreferSave, MustOffload, PreferOffload:
		return true
	}
	return false
}

// ParsePolicy reads a word of a graph file; "" and "none" are PolicyNone.
func ParsePolicy(s string) (Policy, error) {
	if s == "none" {
		return PolicyNone, nil
	}
	for i, w := range policyWords {
		if w == s {
			return Policy(i), nil
		}
	}
	return PolicyNone, fmt.Errorf("unknown policy %q (want none, or prefer- or must- with save, recompute or offload)", s)
}

// Op is a unit of compute.
type Op struct {
	Name      string
	Cost      int64 // nanoseconds, or any integer unit used throughout; ≥ 0
	Workspace int64 // bytes in use only while the op runs; ≥ 0
	Inputs    []int // indices of Problem.Values
	Outputs   []int // indices of Problem.Values

	// InPlace pairs an input with an output that may take over its memory.
	//
	// If the two values have the same Storage, or the input is resident (or is
	// in the memory of something resident), the op overwrites the input: nothing may read the old value afterwards, in
	// this or any later instance. (An optimizer update of a resident parameter
	// is such a pair.) Otherwise reuse is optional: it happens where the input
	// is not read later and the two storages have equal size, and the output
	// then needs no memory of its own.
	InPlace [][2]int

	Det    Det
	Effect Effect
	Group  string // layer or block; ops of one block may be planned alike
}

// RunsOnce reports whether the op may have one instance only, because of what
// it is. (A MustSave output has the same consequence.)
func (o *Op) RunsOnce() bool {
	return (o.Det != DetExact && o.Det != DetKeyed) || o.Effect != EffectNone
}

// Value is a unit of memory.
type Value struct {
	Name  string
	Bytes int64 // ≥ 0

	// Storage names the memory that the value lives in: values with the same
	// non-zero Storage share it and count once, with the size of the largest
	// Offset+Bytes. 0 is a storage of the value's own. A value that shares
	// storage with an input of its op is a view of it, or, if the two are in
	// InPlace, overwrites it.
	Storage int
	Offset  int64 // bytes from the start of the storage

	Resident bool // in memory from start to end (parameter, state, input); has no producer
	Output   bool // its last instance lives to the end of the plan
	Policy   Policy
}

// Offload describes the link to host memory. Nil means that there is none.
type Offload struct {
	BytesPerNsOut float64 // device to host, bytes per cost unit
	BytesPerNsIn  float64 // host to device, bytes per cost unit
	HostBytes     int64   // host memory available
}

// Problem is a program to be planned. Values that no op produces must be
// Resident.
type Problem struct {
	Name    string
	Ops     []Op
	Values  []Value
	Order   []int // a legal order in which every op occurs once; nil means 0,1,2,…
	Offload *Offload

	// Gates are the ops with which backward parts begin: one op, or one for each
	// micro-batch. Between forward and backward is where must-recompute values
	// may not be in memory. Nil: the graph does not say.
	Gates []int

	// Limits bound what is kept across gates of some values.
	Limits []Limit
}

// maxTotal bounds sums of costs and of bytes, so that sums of a few plans, and
// the same with repeats, stay far from the end of int64.
const maxTotal = math.MaxInt64 / 64

// ProblemError is an error in a Problem. Op and Value are indices, or -1.
type ProblemError struct {
	Op, Value int
	Msg       string
}

func (e *ProblemError) Error() string { return "planner: " + e.Msg }

func (p *Problem) opName(i int) string {
	if n := p.Ops[i].Name; n != "" {
		return fmt.Sprintf("op %d %q", i, n)
	}
	return fmt.Sprintf("op %d", i)
}

func (p *Problem) valueName(i int) string {
	if n := p.Values[i].Name; n != "" {
		return fmt.Sprintf("value %d %q", i, n)
	}
	return fmt.Sprintf("value %d", i)
}

func opErr(i int, format string, args ...any) error {
	return &ProblemError{Op: i, Value: -1, Msg: fmt.Sprintf(format, args...)}
}

func valueErr(i int, format string, args ...any) error {
	return &ProblemError{Op: -1, Value: i, Msg: fmt.Sprintf(format, args...)}
}

// order returns the default order, spelled out.
func (p *Problem) order() []int {
	if p.Order != nil {
		return p.Order
	}
	o := make([]int, len(p.Ops))
	for i := range o {
		o[i] = i
	}
	return o
}

// producers returns for each value the op that produces it, or -1. The problem
// must be valid.
func (p *Problem) producers() []int {
	prod := make([]int, len(p.Values))
	for i := range prod {
		prod[i] = -1
	}
	for i := range p.Ops {
		for _, v := range p.Ops[i].Outputs {
			prod[v] = i
		}
	}
	return prod
}

// Validate reports the first thing that is wrong with the problem, with names,
// as a *ProblemError. It never panics. Every function of this package that
// takes a Problem calls it first.
func (p *Problem) Validate() error {
	if err := p.validateValues(); err != nil {
		return err
	}
	prod, err := p.validateOps()
	if err != nil {
		return err
	}
	if err := p.validateOrder(prod); err != nil {
		return err
	}
	for k, g := range p.Gates {
		if g < 0 || g >= len(p.Ops) {
			return opErr(-1, "gate %d is op %d; there are ops 0 to %d", k, g, len(p.Ops)-1)
		}
	}
	if err := p.validateLimits(); err != nil {
		return err
	}
	return p.validateOffload()
}

func (p *Problem) validateValues() error {
	var total int64
	for i := range p.Values {
		v := &p.Values[i]
		switch {
		case v.Bytes < 0:
			return valueErr(i, "%s has negative size %d", p.valueName(i), v.Bytes)
		case v.Offset < 0:
			return valueErr(i, "%s has negative offset %d", p.valueName(i), v.Offset)
		case v.Storage < 0:
			return valueErr(i, "%s has negative storage %d", p.valueName(i), v.Storage)
		case v.Storage == 0 && v.Offset != 0:
			return valueErr(i, "%s has offset %d in a storage of its own", p.valueName(i), v.Offset)
		case int(v.Policy) >= len(policyWords):
			return valueErr(i, "%s has unknown policy %d", p.valueName(i), v.Policy)
		}
		if v.Bytes > maxTotal-total || v.Offset > maxTotal-total-v.Bytes {
			return valueErr(i, "the sizes of the values up to %s add up to more than %d", p.valueName(i), int64(maxTotal))
		}
		total += v.Bytes + v.Offset
	}
	return nil
}

func (p *Problem) validateOps() ([]int, error) {
	prod := make([]int, len(p.Values))
	for i := range prod {
		prod[i] = -1
	}
	var cost, work int64
	for i := range p.Ops {
		o := &p.Ops[i]
		switch {
		case o.Cost < 0:
			return nil, opErr(i, "%s has negative cost %d", p.opName(i), o.Cost)
		case o.Workspace < 0:
			return nil, opErr(i, "%s has negative workspace %d", p.opName(i), o.Workspace)
		case int(o.Det) >= len(detWords):
			return nil, opErr(i, "%s has unknown determinism %d", p.opName(i), o.Det)
		case int(o.Effect) >= len(effectWords):
			return nil, opErr(i, "%s has unknown effect %d", p.opName(i), o.Effect)
		case o.Cost > maxTotal-cost:
			return nil, opErr(i, "the costs of the ops up to %s add up to more than %d", p.opName(i), int64(maxTotal))
		case o.Workspace > maxTotal-work:
			return nil, opErr(i, "the workspaces of the ops up to %s add up to more than %d", p.opName(i), int64(maxTotal))
		}
		cost += o.Cost
		work += o.Workspace
		for _, v := range o.Inputs {
			if v < 0 || v >= len(p.Values) {
				return nil, opErr(i, "%s reads value %d; there are values 0 to %d", p.opName(i), v, len(p.Values)-1)
			}
		}
		for _, v := range o.Outputs {
			if v < 0 || v >= len(p.Values) {
				return nil, opErr(i, "%s produces value %d; there are values 0 to %d", p.opName(i), v, len(p.Values)-1)
			}
			if prod[v] >= 0 {
				return nil, valueErr(v, "%s is produced by %s and by %s", p.valueName(v), p.opName(prod[v]), p.opName(i))
			}
			if p.Values[v].Resident {
				return nil, valueErr(v, "%s is resident and produced by %s; an update in place needs a value of its own", p.valueName(v), p.opName(i))
			}
			prod[v] = i
		}
	}
	for v := range p.Values {
		if prod[v] < 0 && !p.Values[v].Resident {
			return nil, valueErr(v, "%s has no producer and is not resident", p.valueName(v))
		}
	}
	for i := range p.Ops {
		if err := p.validateAliases(i); err != nil {
			return nil, err
		}
	}
	if err := p.validateStorages(prod); err != nil {
		return nil, err
	}
	return prod, nil
}

// validateAliases checks the in-place pairs of op i.
func (p *Problem) validateAliases(i int) error {
	o := &p.Ops[i]
	has := func(list []int, v int) bool {
		for _, x := range list {
			if x == v {
				return true
			}
		}
		return false
	}
	for k, pair := range o.InPlace {
		in, out := pair[0], pair[1]
		if !has(o.Inputs, in) {
			return opErr(i, "%s has an in-place pair (%d, %d) whose first value is not an input", p.opName(i), in, out)
		}
		if !has(o.Outputs, out) {
			return opErr(i, "%s has an in-place pair (%d, %d) whose second value is not an output", p.opName(i), in, out)
		}
		vi, vo := &p.Values[in], &p.Values[out]
		if vi.Resident && vo.Storage != 0 && vo.Storage != vi.Storage {
			return opErr(i, "%s overwrites resident %s with %s, which is in another storage", p.opName(i), p.valueName(in), p.valueName(out))
		}
		if vi.Resident && vo.Storage == 0 && vo.Bytes > vi.Bytes {
			return opErr(i, "%s overwrites resident %s (%d bytes) with larger %s (%d bytes)", p.opName(i), p.valueName(in), vi.Bytes, p.valueName(out), vo.Bytes)
		}
		for _, other := range o.InPlace[:k] {
			if other[1] == out && (vi.Resident || p.Values[other[0]].Resident) {
				return opErr(i, "%s writes %s over two inputs, one of them resident", p.opName(i), p.valueName(out))
			}
			if other[0] == in && vi.Resident {
				return opErr(i, "%s overwrites resident %s twice", p.opName(i), p.valueName(in))
			}
		}
	}
	return nil
}

// validateStorages checks that each shared storage is opened by one op or is
// resident, and that everything else in it is made from something in it.
func (p *Problem) validateStorages(prod []int) error {
	opener := make(map[int]int) // storage: the op that opens it
	res := make(map[int]int)    // storage: a resident value in it
	for v := range p.Values {
		if s := p.Values[v].Storage; s != 0 && p.Values[v].Resident {
			res[s] = v
		}
	}
	for out := range p.Values {
		s, i := p.Values[out].Storage, prod[out]
		if s == 0 || i < 0 {
			continue
		}
		views := false
		for _, in := range p.Ops[i].Inputs {
			views = views || p.Values[in].Storage == s
		}
		if views {
			continue
		}
		if v, ok := res[s]; ok {
			return valueErr(out, "%s is in the storage of resident %s, but %s reads nothing in it", p.valueName(out), p.valueName(v), p.opName(i))
		}
		if j, ok := opener[s]; ok && j != i {
			return valueErr(out, "%s and the outputs of %s share storage %d, but %s reads nothing in it", p.valueName(out), p.opName(j), s, p.opName(i))
		}
		opener[s] = i
	}
	return nil
}

// validateOrder checks that the order is a permutation that respects the
// dependences, and names a cycle where there is one.
func (p *Problem) validateOrder(prod []int) error {
	n := len(p.Ops)
	if p.Order == nil {
		// The implied order is only a default: an order that works is found by
		// the caller's numbering or not at all.
		for i := range p.Ops {
			for _, v := range p.Ops[i].Inputs {
				if j := prod[v]; j >= i {
					if c := p.cycle(prod); c != "" {
						return opErr(i, "the ops form a cycle: %s", c)
					}
					return opErr(i, "no order is given and %s reads %s, which %s produces later", p.opName(i), p.valueName(v), p.opName(j))
				}
			}
		}
		return p.validateOverwrites(prod, p.order())
	}
	if len(p.Order) != n {
		return opErr(-1, "the order has %d entries for %d ops", len(p.Order), n)
	}
	pos := make([]int, n)
	for i := range pos {
		pos[i] = -1
	}
	for k, i := range p.Order {
		if i < 0 || i >= n {
			return opErr(-1, "entry %d of the order is op %d; there are ops 0 to %d", k, i, n-1)
		}
		if pos[i] >= 0 {
			return opErr(i, "%s occurs twice in the order, at %d and %d", p.opName(i), pos[i], k)
		}
		pos[i] = k
	}
	for i := range p.Ops {
		for _, v := range p.Ops[i].Inputs {
			if j := prod[v]; j >= 0 && pos[j] >= pos[i] {
				if c := p.cycle(prod); c != "" {
					return opErr(i, "the ops form a cycle: %s", c)
				}
				return opErr(i, "the order runs %s at %d before %s at %d, which produces its input %s",
					p.opName(i), pos[i], p.opName(j), pos[j], p.valueName(v))
			}
		}
	}
	return p.validateOverwrites(prod, p.Order)
}

// validateOverwrites runs the order once and checks that no op reads a value
// that another one has overwritten.
func (p *Problem) validateOverwrites(prod, order []int) error {
	al := aliasing(p)
	killer := make([]int, len(p.Values))
	for i := range killer {
		killer[i] = -1
	}
	for _, i := range order {
		o := &p.Ops[i]
		for _, v := range o.Inputs {
			if k := killer[v]; k >= 0 {
				return opErr(i, "the order lets %s read %s after %s has overwritten it", p.opName(i), p.valueName(v), p.opName(k))
			}
		}
		for _, pair := range o.InPlace {
			if al.overwrites(pair) {
				for _, v := range al.overwritten(p, i, pair) {
					killer[v] = i
				}
			}
		}
		for _, v := range o.Outputs {
			killer[v] = -1
		}
	}
	for v := range p.Values {
		if p.Values[v].Output && killer[v] >= 0 {
			return valueErr(v, "%s is an output, but %s overwrites it", p.valueName(v), p.opName(killer[v]))
		}
	}
	return nil
}

// cycle returns a cycle of ops as text, or "" if there is none.
func (p *Problem) cycle(prod []int) string {
	n := len(p.Ops)
	state := make([]uint8, n) // 0 new, 1 on the path, 2 done
	next := make([]int, n)
	for root := range p.Ops {
		if state[root] != 0 {
			continue
		}
		path := []int{root}
		state[root] = 1
		for len(path) > 0 {
			i := path[len(path)-1]
			if next[i] == len(p.Ops[i].Inputs) {
				state[i] = 2
				path = path[:len(path)-1]
				continue
			}
			j := prod[p.Ops[i].Inputs[next[i]]]
			next[i]++
			if j < 0 || state[j] == 2 {
				continue
			}
			if state[j] == 0 {
				state[j] = 1
				path = append(path, j)
				continue
			}
			text := p.opName(j)
			for k := len(path) - 1; k >= 0; k-- {
				text += " reads " + p.opName(path[k])
				if path[k] == j {
					break
				}
			}
			return text
		}
	}
	return ""
}

func (p *Problem) validateOffload() error {
	f := p.Offload
	if f == nil {
		return nil
	}
	for _, b := range []float64{f.BytesPerNsOut, f.BytesPerNsIn} {
		if math.IsNaN(b) || math.IsInf(b, 0) || b <= 0 {
			return opErr(-1, "offload bandwidth %v is not a positive number", b)
		}
	}
	if f.HostBytes < 0 {
		return opErr(-1, "offload has negative host memory %d", f.HostBytes)
	}
	return nil
}
