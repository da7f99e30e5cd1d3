package planner

import (
	"archive/zip"
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strconv"
	"strings"

	"reprise/planner"
)

// Trace is an operator trace of DTR's simulator as a planning problem.
type Trace struct {
	Name    string
	Problem *planner.Problem
	Forward int // ops before the backward pass, -1 if the trace does not say
}

// ReadTraces reads every log of simrd_logs.zip. Times are in the trace's unit,
// sizes in bytes. Constants are resident; a mutation is an op that makes a new
// value, which may take over the memory of the old one; what is never released
// is an output.
func ReadTraces(zipPath string) ([]Trace, error) {
	z, err := zip.OpenReader(zipPath)
	if err != nil {
		return nil, err
	}
	defer z.Close()
	var list []Trace
	for _, f := range z.File {
		if !strings.HasSuffix(f.Name, ".log") {
			continue
		}
		r, err := f.Open()
		if err != nil {
			return nil, err
		}
		t, err := readTrace(r)
		r.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
		t.Name, _, _ = strings.Cut(path.Base(f.Name), "-")
		t.Problem.Name = t.Name
		list = append(list, t)
	}
	return list, nil
}

type traceLine struct {
	Instruction string   `json:"INSTRUCTION"`
	Annotation  string   `json:"ANNOTATION"`
	Name        string   `json:"NAME"`
	Src         string   `json:"SRC"`
	Dst         string   `json:"DST"`
	Args        []string `json:"ARGS"`
	Result      []string `json:"RESULT"`
	Mutate      []int    `json:"MUTATE"`
	Memory      string   `json:"MEMORY"`
	Alias       string   `json:"ALIAS"`
	Time        string   `json:"TIME"`
}

func readTrace(r io.Reader) (Trace, error) {
	t := Trace{Problem: &planner.Problem{}, Forward: -1}
	p := t.Problem
	cur := map[string]int{} // name: value
	refs := map[int]int{}   // value: names that refer to it
	storages := 0
	lastOp := -1
	bind := func(name string, v int) {
		if old, ok := cur[name]; ok {
			refs[old]--
		}
		cur[name] = v
		refs[v]++
	}
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 1<<20), 1<<20)
	for n := 1; sc.Scan(); n++ {
		var l traceLine
		if err := json.Unmarshal(sc.Bytes(), &l); err != nil {
			return t, fmt.Errorf("line %d: %w", n, err)
		}
		args := make([]int, 0, len(l.Args))
		for _, a := range l.Args {
			v, ok := cur[a]
			if !ok {
				return t, fmt.Errorf("line %d: %q is not known", n, a)
			}
			args = append(args, v)
		}
		time, _ := strconv.ParseInt(l.Time, 10, 64)
		switch l.Instruction {
		case "ANNOTATE":
			if l.Annotation == "BACKWARD" && t.Forward < 0 {
				t.Forward = len(p.Ops)
			}
		case "CONSTANT":
			p.Values = append(p.Values, planner.Value{Name: l.Name, Resident: true})
			bind(l.Name, len(p.Values)-1)
			lastOp = -1
		case "CALL":
			op := planner.Op{Name: l.Name, Cost: time, Det: planner.DetExact, Inputs: unique(args)}
			for _, name := range l.Result {
				p.Values = append(p.Values, planner.Value{Name: name})
				op.Outputs = append(op.Outputs, len(p.Values)-1)
				bind(name, len(p.Values)-1)
			}
			p.Ops = append(p.Ops, op)
			lastOp = len(p.Ops) - 1
		case "MUTATE":
			op := planner.Op{Name: l.Name, Cost: time, Det: planner.DetExact, Inputs: unique(args)}
			done := map[int]bool{}
			for _, k := range l.Mutate {
				if k < 0 || k >= len(args) || done[args[k]] {
					continue
				}
				old := args[k]
				done[old] = true
				p.Values = append(p.Values, planner.Value{Name: l.Args[k], Bytes: p.Values[old].Bytes})
				out := len(p.Values) - 1
				op.Outputs = append(op.Outputs, out)
				if !p.Values[old].Resident && p.Values[old].Storage == 0 {
					op.InPlace = append(op.InPlace, [2]int{old, out})
				}
				for name, v := range cur {
					if v == old {
						bind(name, out)
					}
				}
			}
			p.Ops = append(p.Ops, op)
		case "MEMORY":
			bytes, err := strconv.ParseInt(l.Memory, 10, 64)
			if err != nil {
				return t, fmt.Errorf("line %d: %w", n, err)
			}
			p.Values[cur[l.Name]].Bytes = bytes
		case "ALIAS":
			k, err := strconv.Atoi(l.Alias)
			if err != nil {
				return t, fmt.Errorf("line %d: %w", n, err)
			}
			if k < 0 || lastOp < 0 || k >= len(p.Ops[lastOp].Inputs) {
				break
			}
			v, of := cur[l.Name], p.Ops[lastOp].Inputs[k]
			if p.Values[of].Storage == 0 {
				storages++
				p.Values[of].Storage = storages
			}
			p.Values[v].Storage = p.Values[of].Storage
			// A view has no bytes of its own beyond what it views.
			p.Values[v].Bytes = min(p.Values[v].Bytes, p.Values[of].Bytes)
		case "COPY":
			bind(l.Dst, cur[l.Src])
		case "COPY_FROM":
			bind(l.Dst, cur[l.Src])
		case "RELEASE":
			if v, ok := cur[l.Name]; ok {
				refs[v]--
				delete(cur, l.Name)
			}
		default:
			return t, fmt.Errorf("line %d: unknown instruction %q", n, l.Instruction)
		}
	}
	for v := range p.Values {
		if !p.Values[v].Resident && refs[v] > 0 {
			p.Values[v].Output = true
		}
	}
	// In-place pairs on memory that turned out to be shared would overwrite.
	for i := range p.Ops {
		var keep [][2]int
		for _, pr := range p.Ops[i].InPlace {
			if p.Values[pr[0]].Storage == 0 {
				keep = append(keep, pr)
			}
		}
		p.Ops[i].InPlace = keep
	}
	return t, sc.Err()
}

func unique(list []int) []int {
	var out []int
	seen := map[int]bool{}
	for _, v := range list {
		if !seen[v] {
			seen[v] = true
			out = append(out, v)
		}
	}
	return out
}
