package runtime

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"reprise/runtime/exe"
)

// Step is what a training executable says of a step.
type Step struct {
	Step         int64   `json:"step"` // steps done, this one included
	Loss         float64 `json:"-"`    // NaN and infinities too, which JSON cannot have
	LossBits     string  `json:"loss_bits"`
	MS           float64 `json:"ms"`
	TokensPerSec float64 `json:"tokens_per_s"` // 0 where the model reads no tokens
}

// Profile is the time of one kernel in one layer, per step, as worker 0 sees it.
type Profile struct {
	Kernel string  `json:"kernel"`
	Layer  string  `json:"layer"`
	RunMS  float64 `json:"run_ms"`
	WaitMS float64 `json:"wait_ms"` // for the other workers, after it
	Calls  float64 `json:"calls"`
}

// Count is how often an op of the plan ran in all steps of a run.
type Count struct {
	Op         int    `json:"op"`  // number in the plan
	Sub        int    `json:"sub"` // 0: the op itself; k: the k-th op in its regions
	Name       string `json:"name"`
	Layer      string `json:"layer"`
	Planned    *int64 `json:"planned"` // nil for an op of a region: it runs as often as that does
	Executed   int64  `json:"executed"`
	Forward    int64  `json:"forward"`
	Recomputed int64  `json:"recomputed"`
}

// Output is what an inference executable says of an output.
type Output struct {
	Name   string  `json:"name"`
	DType  string  `json:"dtype"`
	Shape  []int64 `json:"shape"`
	SHA256 string  `json:"sha256"`
	File   string  `json:"file"`
}

// Done is an executable's last line.
type Done struct {
	Steps             int64     `json:"steps"` // done in this run
	Step              int64     `json:"step"`  // done in all
	Seed              uint64    `json:"seed"`
	LossBits          string    `json:"loss_bits"`
	StateSHA256       string    `json:"state_sha256"`
	PromisedPeakBytes int64     `json:"promised_peak_bytes"`
	ArenaBytes        int64     `json:"arena_bytes"`
	PeakRSSBytes      int64     `json:"peak_rss_bytes"`
	OtherRSSBytes     int64     `json:"other_rss_bytes"`
	HighestByte       int64     `json:"highest_byte"` // with --poison
	Threads           int       `json:"threads"`
	MS                float64   `json:"ms"`
	TokensPerSec      float64   `json:"tokens_per_s"`
	Signal            int       `json:"signal"` // that ended the run early
	Outputs           []Output  `json:"outputs"`
	Profile           []Profile `json:"-"` // with --profile
	Counts            []Count   `json:"-"` // with --counts
}

// lossOf is the loss of a step: that of the JSON, null where it is no finite
// number; then the bits tell which.
func lossOf(loss *float64, bits string) float64 {
	if loss == nil {
		x, err := strconv.ParseUint(bits, 16, 64)
		switch {
		case err == nil && len(bits) == 8:
			return float64(math.Float32frombits(uint32(x)))
		case err == nil && len(bits) == 16:
			return math.Float64frombits(x)
		}
		return math.NaN()
	}
	return *loss
}

// Run runs an executable with --json and args. Each step, if it trains, is given
// to step (may be nil) as it comes. An *exe.Error is the program's own; after an
// interruption of ctx the program finishes its step and saves, and the error is
// that of ctx.
func Run(ctx context.Context, path string, args []string, step func(Step)) (Done, error) {
	var done Done
	path, err := filepath.Abs(path)
	if err != nil {
		return done, err
	}
	cmd := exec.CommandContext(ctx, path, append([]string{"--json"}, args...)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return done, err
	}
	if err := cmd.Start(); err != nil {
		return done, fmt.Errorf("run %s: %w", path, err)
	}
	said, parseErr := readLines(stdout, &done, step)
	if parseErr != nil {
		_, _ = io.Copy(io.Discard, stdout) // let it end
	}
	err = cmd.Wait()
	switch {
	case said != nil:
		return done, said
	case ctx.Err() != nil:
		return done, ctx.Err()
	case err != nil:
		return done, fmt.Errorf("run %s: %w: %s", path, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return done, parseErr
}

// readLines reads the program's JSON lines; said is the error it reported.
func readLines(r io.Reader, done *Done, step func(Step)) (said, err error) {
	lines := bufio.NewReader(r) // not a Scanner: a profile's line may be long
	var profile []Profile
	var counts []Count
	for {
		line, readErr := lines.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			var l struct {
				Done    bool       `json:"done"`
				Profile []Profile  `json:"profile"`
				Counts  []Count    `json:"counts"`
				Error   *exe.Error `json:"error"`
				Loss    *float64   `json:"loss"`
				Step
			}
			if err := json.Unmarshal(line, &l); err != nil {
				return nil, fmt.Errorf("a line that is not JSON: %q: %w", line, err)
			}
			switch {
			case l.Error != nil:
				return l.Error, nil
			case l.Profile != nil:
				profile = l.Profile
			case l.Counts != nil:
				counts = l.Counts
			case l.Done:
				if err := json.Unmarshal(line, done); err != nil {
					return nil, fmt.Errorf("last line: %w", err)
				}
				done.Profile, done.Counts = profile, counts
			case step != nil:
				l.Step.Loss = lossOf(l.Loss, l.LossBits)
				step(l.Step)
			}
		}
		if readErr == io.EOF {
			return nil, nil
		}
		if readErr != nil {
			return nil, readErr
		}
	}
}
