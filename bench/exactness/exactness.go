// Package exactness measures how exact training stays when less is kept: in PyTorch and in JAX, by the scripts of
// bench/peers/exactness, and in the programs that are compiled here, row by row on models of the same kind. Bits are
// compared by hash, nothing is compared with a tolerance.
package exactness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"reprise/internal/diag"
)

// Cell is what one contestant did in a row.
type Cell struct {
	Version  string          `json:"version,omitempty"`
	Says     string          `json:"says"`
	Measured json.RawMessage `json:"measured,omitempty"`
	Failed   bool            `json:"failed,omitempty"` // it could not be run; Says has why
}

// Row is one question, put to all.
type Row struct {
	Name  string `json:"name"`
	What  string `json:"what"`
	Ours  Cell   `json:"reprise"`
	Torch *Cell  `json:"pytorch,omitempty"`
	JAX   *Cell  `json:"jax,omitempty"`
}

// Report is the result of a run.
type Report struct {
	Threads int    `json:"threads"`
	Rows    []*Row `json:"rows"`
}

// Exact reports whether none of our programs gave other bits anywhere.
func (r *Report) Exact() bool {
	for _, row := range r.Rows {
		if strings.Contains(row.Ours.Says, "differ") || row.Ours.Failed {
			return false
		}
	}
	return true
}

// Options of a run.
type Options struct {
	Peers    bool
	PeersDir string    // bench/peers
	Results  string    // directory for exactness.json and exactness.md; "": nothing is written
	Only     []string  // names of rows; nil: all
	Log      io.Writer // progress; nil: none
}

// question is a row before it is answered.
type question struct {
	name, what string
	ours       func(l *lab) (says string, measured any, err error)
}

// Names are the rows' names.
func Names() []string {
	var names []string
	for _, q := range questions() {
		names = append(names, q.name)
	}
	return names
}

// peerTime bounds one row of a peer: its compilers take minutes on a busy machine.
const peerTime = 15 * time.Minute

// Run answers every row. A peer that can't be run is a cell that says why; our own failure is an error.
func Run(ctx context.Context, o Options) (*Report, error) {
	if o.Log == nil {
		o.Log = io.Discard
	}
	known := map[string]bool{}
	for _, n := range Names() {
		known[n] = true
	}
	only := map[string]bool{}
	for _, n := range o.Only {
		if !known[n] {
			return nil, diag.Errorf("usage", "no row %q", n).WithHint("rows: %s", strings.Join(Names(), ", "))
		}
		only[n] = true
	}
	python := filepath.Join(o.PeersDir, ".venv", "bin", "python")
	if o.Peers {
		if _, err := os.Stat(python); err != nil {
			return nil, diag.Errorf("peers", "the peers are not installed: no %s", python).WithHint("run bench/peers/setup.sh")
		}
	}
	l, err := newLab(ctx)
	if err != nil {
		return nil, err
	}
	defer l.close()
	report := &Report{Threads: threads}
	for _, q := range questions() {
		if len(only) > 0 && !only[q.name] {
			continue
		}
		row := &Row{Name: q.name, What: q.what}
		says, measured, err := q.ours(l)
		if err != nil {
			return nil, fmt.Errorf("row %s: %w", q.name, err)
		}
		row.Ours = Cell{Says: says}
		if row.Ours.Measured, err = json.Marshal(measured); err != nil {
			return nil, err
		}
		fmt.Fprintf(o.Log, "%s: %s\n  reprise: %s\n", row.Name, row.What, says)
		if o.Peers {
			for _, p := range []struct {
				script string
				cell   **Cell
			}{{"torch_rows.py", &row.Torch}, {"jax_rows.py", &row.JAX}} {
				c, err := peer(ctx, python, filepath.Join(o.PeersDir, "exactness", p.script), q.name)
				if err != nil {
					return nil, err
				}
				*p.cell = c
				fmt.Fprintf(o.Log, "  %s: %s\n", c.Version, c.Says)
			}
		}
		report.Rows = append(report.Rows, row)
		// What is done is kept even if a later row fails.
		if o.Results != "" {
			if err := report.write(o.Results); err != nil {
				return nil, err
			}
		}
	}
	return report, nil
}

// peer runs one row of a peer in a process of its own.
func peer(ctx context.Context, python, script, name string) (*Cell, error) {
	limited, cancel := context.WithTimeout(ctx, peerTime)
	defer cancel()
	c := exec.CommandContext(limited, python, script, name)
	c.WaitDelay = 5 * time.Second
	var out, log bytes.Buffer
	c.Stdout, c.Stderr = &out, &log
	err := c.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	cell := &Cell{}
	if jerr := json.Unmarshal(out.Bytes(), cell); err != nil || jerr != nil {
		why := lastLine(log.String())
		if limited.Err() != nil {
			why = fmt.Sprintf("no answer within %v", peerTime)
		}
		return &Cell{Says: "could not be run: " + why, Failed: true}, nil
	}
	return cell, nil
}

func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// write writes exactness.json and exactness.md.
func (r *Report) write(dir string) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "exactness.json"), append(data, '\n'), 0o666),
		os.WriteFile(filepath.Join(dir, "exactness.md"), []byte(r.Markdown()), 0o666))
}

// Markdown is the table.
func (r *Report) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Bits of gradients, parameters and state when less is kept than everything: small models on the CPU, %d threads,\ncompared by hash with the program that keeps everything. `reprise bench exactness --peers` measures it again.\n\n", r.Threads)
	torch, jax := "PyTorch", "JAX"
	peers := false
	for _, row := range r.Rows {
		if row.Torch != nil && row.Torch.Version != "" {
			torch = row.Torch.Version
		}
		if row.JAX != nil && row.JAX.Version != "" {
			jax = row.JAX.Version
		}
		peers = peers || row.Torch != nil || row.JAX != nil
	}
	cell := func(c *Cell) string {
		if c == nil {
			return "–"
		}
		return strings.ReplaceAll(c.Says, "|", "\\|")
	}
	if !peers {
		b.WriteString("| what | reprise |\n|---|---|\n")
	} else {
		fmt.Fprintf(&b, "| what | %s | %s | reprise |\n|---|---|---|---|\n", torch, jax)
	}
	for _, row := range r.Rows {
		if !peers {
			fmt.Fprintf(&b, "| %s | %s |\n", row.What, cell(&row.Ours))
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", row.What, cell(row.Torch), cell(row.JAX), cell(&row.Ours))
	}
	return b.String()
}
