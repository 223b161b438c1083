"""Types of config keys, written by tests/typed_keys.py from the models that check them at run time."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

from fedloom.evaluation.metric import Metric

_Section: TypeAlias = Mapping[str, Any]

class OptimizerKeys(TypedDict, total=False):
    name: Literal["sgd", "adam"]
    """Optimiser: stochastic gradient descent (sgd) or Adam."""
    lr: float
    """Learning rate, above 0."""
    momentum: float
    """Momentum of sgd, as the share of the last direction that is kept."""
    weight_decay: float
    """Factor of the weights that are added to their gradient (L2)."""
    betas: Sequence[float]
    """Decay rates of Adam's first and second moments."""
    eps: float
    """Number that Adam adds to the root of the second moment."""
    decay: float
    """Factor of the learning rate after every round; 1 keeps it constant."""

class AugmentationKeys(TypedDict, total=False):
    crop: int
    """Pixels of padding on each side, before a window of the old size is cut out at a random position. All (2 * crop +
    1)^2 positions are equally likely."""
    flip: bool
    """Whether images are mirrored left to right, with probability 1/2."""
    rotate: float
    """Largest angle of a rotation about the centre, in degrees; angles are uniform in [-rotate, rotate], with bilinear
    interpolation (torchvision's default is the nearest pixel)."""
    per: Literal["sample", "batch"]
    """Scope of a random draw: `sample` draws for each image, `batch` once for the whole batch, as the released code of
    FedSKC and FedSC does by calling torchvision on the batch tensor."""
    fill: Literal["black", "mean"]
    """Value of pixels that come in from outside. `black` is stored value 0, because augmentation happens before
    normalisation, as is usual in torchvision. `mean` is the mean colour, because augmentation happens after
    normalisation, as in the released code of FedSKC, FedSC and FedSSA."""

DecisionKeys = TypedDict(
    "DecisionKeys",
    {
        "class": str,
        "rule": Literal["youden"] | Mapping[Literal["specificity", "sensitivity", "net_benefit", "cost"], float],
    },
    total=False,
)

class IntervalsKeys(TypedDict, total=False):
    by: Literal["group", "row"]
    """Units that are drawn within each client; rows also where the data have no groups."""
    level: float
    """Coverage of the intervals."""
    draws: int
    """Number of bootstrap samples."""

class NewcomersKeys(TypedDict, total=False):
    shots: Sequence[int | Literal["all"]]
    """Numbers of samples of each class that a newcomer tunes on, one test each: whole numbers, or `all` for its whole
    training data. If it has fewer samples of a class, it tunes on all of them. An empty list leaves only the test
    without tuning."""
    tunes: Sequence[Literal["all", "head", "lp_ft", "own"]]
    """Ways of tuning, one test each: `all` weights, the `head` alone, `lp_ft`, the head and then all weights at a tenth
    of the rate, or `own`, the method's own round."""
    epochs: int
    """Passes over the tuning samples, in each phase of tuning."""

class EvaluationKeys(TypedDict, total=False):
    protocol: Literal[
        "global/global", "global/local", "personal/global", "personal/local", "personal/others", "few-shot"
    ]
    """Model that is tested and the data that it is tested on, as model/data. `global` is the server's model or the
    whole test set, `personal` and `local` are each client's own, and `others` are the test samples of all other
    clients. `few-shot` tests the server's features on new classes."""
    protocols: Sequence[str]
    """Several protocols that one run is tested by, each with its own columns and its own selected round. The first is
    the main one, which the headline, tuning and early stopping use. A method is tested in those that it offers. One
    alone is the same as `protocol`."""
    select: Literal["last", "best_val", "best_test", "mean_last_k"]
    """Round whose test accuracy counts: `last`; `best_val`, of best validation accuracy; `best_test`, the papers'
    habit, which looks at the test set; or `mean_last_k`, the mean of the last `last_k` tests."""
    select_by: str
    """Metric by which `best_val`, `best_test` and tuning select; if not always recorded, in `metrics`."""
    every: int
    """Number of rounds between two tests; the last round is always tested."""
    last_k: int
    """Number of evaluated rounds that `mean_last_k` averages over."""
    also: Sequence[str]
    """Names of the method's other predictors to test likewise."""
    metrics: Sequence[str] | Sequence[str | type[Metric] | Callable[..., Any]]
    """Names of further metrics: average_precision, auroc, adaptive_ece, brier, nll, precision, recall, specificity,
    ppv, npv, mcc, weighted_f1, domain_accuracy, calibration_slope, calibration_intercept, calibration_in_the_large,
    means over all classes (recall_all, precision_all, macro_f1_all), and those of plug-ins; in Python also functions.
    With any share: sensitivity@specificity=0.95, specificity@sensitivity=0.95, ppv@prevalence=0.1, npv@prevalence=0.1.
    Accuracy, loss, balanced_accuracy, macro_f1, ece and the success of an attack are always recorded, also by an empty
    list."""
    scores_mib: float
    """Memory in MiB that the scores of one model, 8 bytes each, may take for metrics that need them all (auroc,
    average_precision, sensitivity@specificity, adaptive_ece). With more scores they are counted in 4,096 bins, and the
    bound of the error is reported."""
    decision: DecisionKeys | None
    """Section of the threshold, chosen on validation data, from which on samples are taken for a class."""
    intervals: IntervalsKeys | None
    """Section of the confidence intervals of the last test; null makes none."""
    newcomers: NewcomersKeys
    """Section of the tests on clients that never train, named by `scenario.held_out`."""
    ways: int
    """Number of classes in an episode of the protocol few-shot."""
    shots: int
    """Number of labelled samples of each class in an episode of the protocol few-shot."""
    queries: int
    """Number of tested samples of each class in an episode of the protocol few-shot."""
    episodes: int
    """Number of episodes in a test of the protocol few-shot."""

class EarlyStoppingKeys(TypedDict, total=False):
    patience: int
    """Number of tests without improvement after which the run ends."""
    min_delta: float
    """Improvement that a test must exceed to count, in units of `measure`."""
    measure: Literal["accuracy", "loss"]
    """Validation measure that is watched: accuracy (a share from 0 to 1) or loss (nats)."""

class DriftKeys(TypedDict, total=False):
    decompose_every: int
    """Number of rounds between two decompositions of the drift into its local, sampling and server parts, the first in
    round 1; 0 makes none. For each, all clients train once more, and the pooled data once: for simulations."""

class DeviceKeys(TypedDict, total=False):
    samples_per_second: float
    """Training samples that a device works through in a second of virtual time."""
    down_mbit: float
    """Bandwidth of downloads, in megabits per second."""
    up_mbit: float
    """Bandwidth of uploads, in megabits per second."""
    latency: float
    """Seconds before a download or an upload begins to flow."""
    available: float
    """Probability that a client can be reached in a round."""

class DevicesKeys(TypedDict, total=False):
    samples_per_second: float
    """Training samples that a device works through in a second of virtual time."""
    down_mbit: float
    """Bandwidth of downloads, in megabits per second."""
    up_mbit: float
    """Bandwidth of uploads, in megabits per second."""
    latency: float
    """Seconds before a download or an upload begins to flow."""
    available: float
    """Probability that a client can be reached in a round."""
    profiles: Sequence[DeviceKeys] | str
    """Devices one by one, as sections or as a CSV file with these columns; client k has number k mod their count. A key
    that an entry leaves out is that of this section. Empty: all have this section's device."""
    spread: float
    """Standard deviation of the logarithm of a log-normal factor for each client's speed, and of one for its
    bandwidths."""
    slow_share: float
    """Share of the clients, drawn once, that are slower by slow_factor."""
    slow_factor: float
    """How many times slower their devices and lines are."""
    deadline: float | None
    """Seconds of virtual time after which a round ends; null waits for all clients."""
    late: Literal["drop", "next_round", "fewer_steps"]
    """What happens to clients that would miss the deadline. `drop`: their uploads are lost, and counted. `next_round`:
    an upload is used in the round in which it arrives, by methods that declare that they may. `fewer_steps`: they take
    as many steps as fit, with methods that correct for it."""

class CheckpointKeys(TypedDict, total=False):
    seconds: float
    """Time since the last checkpoint after which the next round ends with one, in seconds."""
    keep: int
    """Number of newest checkpoints that are kept."""
    keep_clients: Sequence[int]
    """Rounds whose client models are kept in the run folder, e.g. for loss landscapes around them: what each
    participant sends, and the server's state before and after. For simulations."""
    keep_clients_mib: int
    """Largest size of all kept client models, in MiB. A run that would take more is refused."""
    predictions: bool
    """Whether to write predictions.parquet: row, client, hashed group, label and logits of each sample in the last test
    of the main protocol. For simulations."""

class EngineChoiceKeys(TypedDict, total=False):
    name: Literal["auto", "serial", "threads", "processes", "batched", "ray"]
    """Engine of the clients' work. `serial`, `threads`, `processes` and `ray` (tasks on all nodes of a cluster) give
    the same bits; `threads` needs a C++ compiler. `batched` trains stacks of clients in each process, and agrees to
    about 1e-5. `auto` takes threads where they can replay a method's steps and need not wait for Python; otherwise it
    compares whole rounds and takes the fastest of those that it may use on this machine."""
    same_bits: bool
    """Whether auto may only choose engines and kernels with the numbers of `serial`, so that results do not depend on
    the machine's speed."""
    kernels: Literal["auto", "torch", "own"]
    """Code of the convolutions. `own` is the project's own for convolutions of few channels: it needs a C++ compiler,
    trains a LeNet up to twice as fast, and agrees to about 1e-5 after a few steps. `auto` is torch, unless the engine
    is chosen by auto without `same_bits`."""
    workers: int | None
    """Number of threads, processes, or clients at a time on Ray; null takes one per core."""
    stack: int | None
    """Largest number of clients in a stack of engine `batched`; null: 32, or 128 on a GPU."""
    client_seconds: float | None
    """Longest time for a client's work, in seconds, with several processes; null: no limit."""
    state_budget_mb: float | None
    """Size of client states kept in memory, in MiB; the others go to disk. Null: no limit."""
    device: str
    """Device that clients are trained and tested on: cpu, cuda or cuda:1. `auto` is $FEDLOOM_DEVICE if that is set;
    else the first GPU if there is one and a step of the net has 50 million operations or more; else the CPU. On cuda
    there are no threads, no processes and no Ray, and the engine auto is serial unless `same_bits` is false; ask for
    batched there."""
    deterministic: bool
    """Whether a GPU must give the same bits from run to run, without sums of no fixed order."""
    fast: bool
    """Whether training steps may be sped up. With false every step runs in plain Python, with the same numbers, for
    losses that print or are stepped through."""

class FlowerKeys(TypedDict, total=False):
    min_clients: int
    """Smallest number of uploads that closes a round; with fewer the run ends."""
    round_timeout: float | None
    """Seconds that the server waits for answers before it closes a round without them; null waits for every client that
    moves."""
    join_timeout: float
    """Seconds in which nodes may join before the first round."""
    node_timeout: float
    """Seconds in which a node that joins must move; doubled each time."""
    heartbeat: float
    """Seconds after which a node that works tells how far it is."""
    stall_seconds: float
    """Seconds without movement after which a client is asked once more, and then left out."""
    part_bytes: int
    """Bytes of the largest part in which a payload travels."""
    idle_seconds: float
    """Seconds without a message after which a node ends the process that keeps its data."""
    max_failures: Literal["auto"] | int
    """Largest number of clients of a round whose work may raise an exception; one more ends the run. `auto` is a fifth
    of the run's clients, and at least one, as long as min_clients remain."""
    max_share: Literal["auto"] | float
    """Largest share of a round's training samples that one client may claim where only the nodes know their data
    (source: nodes). `auto` is 2 / sqrt(clients of the round), at most 0.95. The bound acts from four clients on."""
    max_ratio: float | None
    """Largest size of an upload, as a multiple of the median client's, item by item (trees, heads, rows of class
    tables, numbers), in rounds of fewer than four also of earlier rounds; null accepts any size."""
    max_norm: float | None
    """Longest distance (L2) between weights that a client uploads and was sent, or null."""
    compare: Sequence[Literal["moments", "labels"]]
    """What nodes report, so that their data are compared before the first round, in addition to moments of columns that
    they standardise together: `moments` of features with an agreed mean, or of the channels of pictures, and counts of
    `labels`, without those below five."""
    accept_unlike: Sequence[str]
    """Columns whose unit, coding or marks are right although other nodes have others, as client/column; `*` stands for
    any."""

class APFLOptions(TypedDict, total=False):
    alpha: float
    """First share of the own model in the mixture."""
    alpha_lr: float | None
    """Rate at which a client learns its share; 0 keeps the share. Null takes the run's learning rate (our choice: the
    paper's rule has one rate for all)."""

class CCVROptions(TypedDict, total=False):
    features: int
    """Virtual features drawn for each class (our choice: no source states a number)."""
    server_epochs: int
    """Passes over the virtual features that train the head (our choice)."""
    server_lr: float | None
    """Learning rate of these passes. Null takes the run's (our choice)."""
    server_batch_size: int
    """Virtual features in a batch of these passes (our choice)."""

class CFLOptions(TypedDict, total=False):
    eps1: float
    """A cluster splits if its mean change is shorter; 0 never splits."""
    eps2: float
    """A cluster splits if the longest change of a member is longer."""
    first_split: int
    """First round in which clusters may split."""
    min_size: int
    """Clusters with no more members than this do not split."""
    linkage: Literal["complete", "single"]
    """Similarity of two groups: that of their least similar pair (released code), or that of their most similar pair,
    which makes the greatest similarity across the split as small as possible (the paper)."""
    weights: Literal["uniform", "samples"]
    """Weights of the members of a cluster: equal, or by their samples."""

class COPAOptions(TypedDict, total=False):
    weight: float
    """Weight of the summed losses of the other clients' heads. 1 is Fed-CO2's; the paper's is not known."""

class DittoOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull of a client's own model towards the received one."""
    personal_epochs: int
    """Passes that train the own model; 1, as in released code."""

class FDOptions(TypedDict, total=False):
    gamma: float
    """Weight of the distillation term; 0 is local training (no source states a value: 1 is our choice)."""
    outputs_from: Literal["after_training", "training", "last_epoch"]
    """Where class means of outputs come from: a pass after training, or the training's own forward passes before each
    step, of all epochs (training) or of the last one (last_epoch)."""

class RidgeHeadOptions(TypedDict, total=False):
    body: Literal["fedavg", "first"]
    """The body below the head: trained as FedAvg in the rounds before, or the first weights as they are, for a model
    that comes pre-trained; then the rounds before do nothing."""
    ridge: float
    """lambda, the ridge penalty of the regression on labels."""

class FedAdagradOptions(TypedDict, total=False):
    server_lr: float
    """eta, the server's step."""
    beta1: float
    """Share of the last direction in m; 0 in the paper."""
    tau: float
    """Degree of adaptivity, added to sqrt(v)."""
    v0: float | None
    """First v. Null is tau squared."""

class FedAdamOptions(TypedDict, total=False):
    server_lr: float
    """eta, the server's step."""
    beta1: float
    """Share of the last direction in m."""
    tau: float
    """Degree of adaptivity, added to sqrt(v)."""
    v0: float | None
    """First v. Null is tau squared."""
    beta2: float
    """Share of the last v in the next one."""
    bias_correction: bool
    """Multiply eta by sqrt(1 - beta2^t) / (1 - beta1^t) in round t, as Keras does."""

class FedALAOptions(TypedDict, total=False):
    eta: float
    """Rate at which a client learns how to mix."""
    share: float
    """Share of its data, drawn at random, that a mixing pass uses."""
    first: int
    """Largest number of passes of a client's first mixing, which ends when its losses settle (our choice: released code
    has no bound). Later mixings take one pass."""

class FedAMPOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull to the cloud model; 0 is Local."""
    alpha: float
    """alpha, the server's step: it multiplies the others' weights (kernel exponential), and divides lambda."""
    kernel: Literal["exponential", "cosine"]
    """Weights of the other models: by their squared distance, as in FedAMP, or by their cosine, which sum to 1, as in
    HeurFedAMP, the paper's version for deep networks."""
    sigma: float
    """sigma, the width of the exponential kernel, or the factor of cosines."""
    own_share: float
    """Weight of a client's own model under the cosine kernel (our choice)."""
    among: Literal["everybody", "participants"]
    """Models that are mixed: the latest of all clients that ever took part, or, as in PFLlib and fluke, of the last
    round's participants."""

class FedASOptions(TypedDict, total=False):
    align_lr: float
    """Learning rate of the alignment, plain SGD."""
    align_epochs: int
    """Passes that align the received body."""
    trace: Literal["batches", "samples"]
    """The weight of a client: squared gradients of batch means, summed over batches, as released, or of single samples,
    averaged, as the Fisher information has them."""

class FedAsyncOptions(TypedDict, total=False):
    mu: float
    """rho, strength of the pull towards the received weights."""
    alpha: float
    """Share of an upload without staleness in the new weights."""
    staleness: Literal["polynomial", "hinge", "constant"]
    """How the share falls with staleness."""
    a: float | None
    """a of polynomial and hinge. Null is 0.5 and 10."""
    b: int
    """b of hinge: the staleness up to which nothing falls."""

class ServerMomentumOptions(TypedDict, total=False):
    beta: float
    """Share of the last direction that the velocity keeps."""
    server_lr: float
    """The server's step. With beta 0 and a step of 1 the method is FedAvg."""
    nesterov: bool
    """Step from where the momentum alone would lead."""

class FedBABUOptions(TypedDict, total=False):
    tuned: Literal["all", "head", "body"]
    """Entries that a client tunes before its personal model is tested."""
    tuning_epochs: int
    """Passes over the client's training data that tune them; 5 is our choice, the paper tries 1 to 20."""

class FedBNOptions(TypedDict, total=False):
    weights: Literal["uniform", "samples"]
    """Weights of clients in the mean: equal, or by samples."""
    bn_stats: Literal["personal", "shared"]
    """Personal: running means and variances stay with the client. Shared: they are averaged and only scale and shift
    stay (the label-skew code of Fed-CO2)."""

class FedBuffOptions(TypedDict, total=False):
    buffer: int
    """K, changes in a step of the server."""
    server_lr: float
    """eta, the server's step."""
    scaled: bool
    """Whether stale changes count less."""

class FedCDAOptions(TypedDict, total=False):
    kept: int
    """K, models that the server keeps of each client."""
    batches: int
    """B, groups of participants that choose one after another."""
    warmup: int
    """Number of first rounds that are FedAvg."""
    smoothness: float
    """L, weight of the distance between the models against their losses."""

class GaussianHeadOptions(TypedDict, total=False):
    body: Literal["fedavg", "first"]
    """The body below the head: trained as FedAvg in the rounds before, or the first weights as they are, for a model
    that comes pre-trained; then the rounds before do nothing."""
    gamma: float
    """gamma, added to the variance of every feature; the released code adds nothing."""
    covariance: Literal["all", "within"]
    """Covariance of all features, as in released code, or within classes, as in LDA."""

class FedClassAvgOptions(TypedDict, total=False):
    tau: float
    """Temperature of the contrast."""
    base_tau: float | None
    """The contrast is multiplied by tau / base_tau, as in released code. Null: by 1."""
    rho: float
    """Strength of the pull of the head to the received one (0.1 is our choice)."""
    pretraining: int
    """Epochs of cross-entropy alone when a client takes part for the first time."""

class FedCO2Options(TypedDict, total=False):
    algorithm: Literal["feature_skew", "label_skew"]
    """Algorithm 1, for feature skew, with a mutual phase and foreign heads, or Algorithm 2, for label skew alone, with
    neither."""
    mu: float
    """Weight of the foreign heads' losses."""
    inter_reduce: Literal["sum", "mean"]
    """Sum of the foreign heads' losses, as printed, or their mean, which does not grow with the number of clients."""
    intra_to_online: bool
    """Whether the online net learns from the offline net in the mutual phase."""
    intra_to_offline: bool
    """Whether the offline net learns from the online net in the mutual phase."""
    inter_online: bool
    """Whether the online net's features pass through foreign heads."""
    inter_offline: bool
    """Whether the offline net's features pass through foreign heads."""
    replace_intra: bool
    """A net whose mutual phase is off trains on cross-entropy meanwhile, so that both nets make as many steps."""
    mutual_epochs: int
    """Passes of the mutual phase."""
    personal: Literal["bn", "head", "bn+head"]
    """Entries of the online net that stay with the client."""
    bn_stats: Literal["personal", "shared"]
    """Whether running statistics stay with the client or are averaged."""
    weights: Literal["uniform", "samples"]
    """Weights of clients in the mean: equal, or by samples."""
    offline_init: Literal["same", "independent"]
    """First weights of the offline net: those of the online net, or drawn by each client."""
    bank: Literal["cache", "last_round"]
    """Foreign heads that the server keeps: the latest of every client, or those of the last round."""
    initial_heads: bool
    """Until the first uploads the bank holds every client's first head (if offline_init is same)."""

class CovarianceHeadOptions(TypedDict, total=False):
    body: Literal["fedavg", "first"]
    """The body below the head: trained as FedAvg in the rounds before, or the first weights as they are, for a model
    that comes pre-trained; then the rounds before do nothing."""
    gamma: float
    """gamma, added to the variance of every feature within a class."""

class FedCompassOptions(TypedDict, total=False):
    least_work: float
    """Q_min / Q_max, least share of its usual steps for a client."""
    server_lr: float
    """eta, the server's step."""
    a: float
    """How fast stale changes lose weight."""

class FedCPOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull of features to those of the received body (MMD)."""
    noise: bool
    """Gumbel noise in the gate while training; tests have none."""

class DebiasedOptions(TypedDict, total=False):
    kappa: float
    """Strength of the pull of the features' running mean to the consensus; 0 has no opening."""
    mu: float
    """Share of the present batch in the running mean."""
    bias: bool
    """Whether clients have a private vector; without it, it stays 0."""
    bias_lr: float | None
    """Rate of the private vector's plain gradient steps. Null takes the run's."""

class DecorrOptions(TypedDict, total=False):
    beta: float
    """Weight of the term. With 0 it is the method without it."""
    form: Literal["code", "paper"]
    """code: mean of the squared correlations off the diagonal, times the batch size. paper: squared Frobenius norm of
    the correlations over d^2, with the diagonal."""

class FedDFOptions(TypedDict, total=False):
    steps: int
    """Distillation steps of the server in a round."""
    server_lr: float
    """Learning rate of these steps."""
    server_optimizer: Literal["adam", "sgd"]
    """Optimiser of these steps; its moments start from 0 in each round."""
    cosine: bool
    """Whether the rate falls to 0 along half a cosine during a round."""
    server_batch_size: int | None
    """Public samples in each step. Null takes all."""

class FedDiscoOptions(TypedDict, total=False):
    a: float
    """Factor of a client's discrepancy, which is subtracted from its share of samples."""
    b: float
    """Number added to every client's weight."""
    distance: Literal["l2", "kl"]
    """Distance of the client's label shares from 1 / C."""
    normalised: bool
    """Divide the distance by its sum over the participants, so that a means the same for both distances."""

class FedDistillOptions(TypedDict, total=False):
    weight: float
    """Weight of the distillation term; 0 is FedAvg."""
    ema: float
    """Share of the round's rows in the next ones."""
    compares: Literal["log_probabilities", "probabilities"]
    """KL against the log of the outputs, or against the outputs themselves, as FedDW's code does by mistake."""

class DWOptions(TypedDict, total=False):
    mu: float
    """Weight of the regulariser."""
    mu_decay: Sequence[float] | None
    """(every, by): mu is divided by `by` at the start of rounds every, 2 every, and so on. Null keeps mu."""
    sl_init: Literal["eye", "uniform", "skip_round1"]
    """SL matrix of round 1: identity, 1/C everywhere, or no regulariser in that round."""
    sl_ema: float
    """Share of the new SL matrix in the next."""
    sl_cumulative: bool
    """Sum all uploads since round 1."""
    absent_row: Literal["keep", "eye", "uniform", "mask"]
    """Row of a class without holders: the previous row, e_i, 1/C, or left out of the regulariser."""
    linearised: Literal["off", "softmax_lin", "gram"]
    """A convex form of the regulariser around the received weights; gram is as printed, without softmax."""
    relin_every: int
    """Local steps after which the convex form is taken around the present weights; 0 is never."""
    relu_on_cr: bool
    """ReLU before the softmax (released code of the personal variant)."""
    head_bias: bool
    """Keep the head's bias."""

class FedDynOptions(TypedDict, total=False):
    alpha: float
    """Strength of the regulariser, which is undefined at 0."""
    clip: float | None
    """Bound of the gradients' joint 2-norm. Null is no bound."""

class FedEMOptions(TypedDict, total=False):
    components: int
    """M, the number of shared models; 1 is FedAvg."""

class FedExPOptions(TypedDict, total=False):
    eps: float
    """Number that keeps the divisor of the server's step from 0."""
    eps_by_participants: bool
    """Multiply eps by the number of participants."""
    weights: Literal["samples", "uniform"]
    """Weights p_k of the means over clients."""
    average: bool
    """Test the mean of the last two iterates instead of the last one."""

class FedFomoOptions(TypedDict, total=False):
    models: int
    """M, how many other clients' models a client receives at most."""
    explore: float
    """epsilon, the probability in round 1 that a model is drawn and not the best known."""
    explore_decay: float
    """By how much the probability falls in each round."""
    validation: float
    """Share of a client's training samples that weigh models and never train."""
    drawn_validation: bool
    """Whether these samples are drawn; if not, they are a client's last in stored order."""
    norm: Literal["l2", "l1", "squared", "by_tensor"]
    """Length by which a fall of the loss is divided: of the whole change (l2), the sum of absolute values (l1), the
    squared length (squared), or the sum of the tensors' lengths (by_tensor)."""
    base: Literal["first", "own"]
    """Weights from which a client moves to others' models: those with which its last training began, or its own latest,
    as in FL-bench."""

class FedGenOptions(TypedDict, total=False):
    weight: float
    """Weight of the clients' loss on generated features; 0 is FedAvg."""
    noise: int
    """Width of the generator's noise."""
    hidden: int
    """Width of the generator's hidden layer."""
    server_lr: float
    """Learning rate of the generator."""
    server_steps: int
    """Steps of the generator in a round."""
    adam: bool
    """Whether these are steps of Adam, with moments that start from 0 in each round, or plain ones."""
    draws: int
    """Features in each step, and of a client in a round."""
    diversity: float
    """Weight of the released code's term against features that do not follow the noise."""

class FedGHOptions(TypedDict, total=False):
    server_lr: float
    """Learning rate of the server's steps."""
    server_epochs: int
    """Steps of the server in a round, each over all rows of the round (our choice: HtFLlib takes batches). With 0 the
    head stays as it was."""

class FedKDOptions(TypedDict, total=False):
    mentee: str | None
    """Registered model of the shared net. Null takes the run's own; a name is needed where clients have different
    nets."""
    compresses: Literal["updates", "weights", "nothing"]
    """Decomposed entries: updates of the mentee, its weights (as in PFLlib), or nothing."""
    energy_first: float
    """Share of the squared singular values that is kept at the first round."""
    energy_last: float
    """Share of the squared singular values that is kept at the last round."""

class FedL2GOptions(TypedDict, total=False):
    guides: Literal["logits", "features"]
    """Target of the vectors: the outputs (FedL2G-l) or the head's input (FedL2G-f)."""
    quiz: int | None
    """Samples of a client that never train and judge a guided step. Null is a batch."""
    drawn_quiz: bool
    """Whether the quiz is drawn; if not, it is a client's first samples in stored order."""
    warm_up: int
    """Rounds at the start in which only the vectors learn."""
    server_lr: float
    """Learning rate of the vectors."""
    clip: float | None
    """Bound of the norm of the vectors' gradient at a client."""

class FedLCOptions(TypedDict, total=False):
    tau: float
    """Strength of the calibration; 0 only leaves out classes that the client lacks."""

class FedMDOptions(TypedDict, total=False):
    inputs: int | None
    """How many of the server's public inputs are used, the first ones. Null takes all."""
    digest_epochs: int
    """Passes over the public inputs that digest the consensus."""
    digest_lr: float | None
    """Learning rate of these passes. Null takes the run's in this round."""
    distance: Literal["absolute", "squared"]
    """Distance of logits that the digest minimises: mean absolute or mean squared."""
    start: Literal["drawn", "common"]
    """First weights: each client draws its own, or those of one architecture are equal. Equal ones agree from the
    start, and teach each other nothing new."""

class FedMRLOptions(TypedDict, total=False):
    small: str | None
    """Registered model of the small shared net, whose features may not be wider than those of any client's own net.
    Null takes the run's own model."""
    weights: Literal["samples", "uniform"]
    """Weights of clients in the mean of small nets: by samples, as the authors, or equal, as HtFLlib."""
    tied_heads: bool
    """Whether the small head is the first columns of the own head, with its bias, and both losses move them, as in the
    authors' script for clients with equal nets."""
    clip: float | None
    """Bound of the gradients' 2-norm, of each net alone. Null is no bound; the authors take 50."""

class OneShotOptions(TypedDict, total=False):
    body: Literal["fedavg", "first"]
    """The body below the head: trained as FedAvg in the rounds before, or the first weights as they are, for a model
    that comes pre-trained; then the rounds before do nothing."""

class FedNHOptions(TypedDict, total=False):
    rho: float
    """Share of the last prototypes in the next ones; 1 never moves them."""
    scale: float
    """s, the factor of cosines."""
    learn_scale: bool
    """Whether s is trained and averaged like a weight, from `scale` on."""
    clip: float | None
    """Bound of the gradients' joint 2-norm. Null is no bound."""

class FedNTDOptions(TypedDict, total=False):
    beta: float
    """Weight of the distillation; 0 is FedAvg."""
    tau: float
    """Temperature of the distillation."""

class FedORGPOptions(TypedDict, total=False):
    weight: float
    """lambda_c, the strength of the clients' pull; 0 is local training."""
    near: float
    """lambda_s, the weight of the server's term that turns prototypes to their clients' rows."""
    apart: float
    """gamma, the weight of the server's term against cosines to rows of other classes."""
    adaptive: bool
    """Whether both terms weigh more where rows of other classes are near, as in newer released code."""
    filtered: bool
    """Whether features that lie apart from the others of their class are left out of the class means, as in newer
    released code."""
    distance_share: float
    """alpha, the weight of a feature's distance to its class mean, against its cosine, when `filtered`."""
    server_lr: float
    """Learning rate of the server's steps."""
    server_epochs: int
    """Steps of the server in a round, each over all rows of the round (our choice: released code takes batches of
    32)."""

class FedPACOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull to the global class means."""
    head_lr: float
    """Learning rate of the head in its own phase."""
    head_epochs: int
    """Passes that train the head, before the body trains."""
    cut: float
    """Head weights up to this one become 0; the others are scaled to 1."""
    weights: Literal["counts", "uniform"]
    """Weights of the holders of a class in its global mean: by samples of it, or equal."""
    unknown: Literal["own", "none"]
    """What pulls features of a class without a global mean: the client's own mean before training, or nothing."""

class FedPCLOptions(TypedDict, total=False):
    tau: float
    """Temperature of both contrasts. The default is our choice."""

class FedPLVMOptions(TypedDict, total=False):
    alpha: float
    """Power of the cosines: the smaller, the less a near prototype is worth."""
    tau: float
    """Temperature of the contrast."""
    weight: float
    """Weight of the contrast and of the pull, against cross-entropy."""
    pull: float
    """Factor of the pull to the centre of a class, within that weight."""
    weights: Literal["samples", "uniform"]
    """How clients weigh in the mean of their weights."""
    keep_absent: bool
    """Whether a class that no participant holds keeps its prototypes. Released code drops them."""

class FedProcOptions(TypedDict, total=False):
    prototypes_from: Literal["after_training", "last_epoch"]
    """Where class means come from: a pass after training, or the last epoch's own forward passes."""
    keep_absent: bool
    """Whether a class that no participant holds keeps its prototypes. Released code drops them."""
    learns_at_once: bool
    """Whether the contrast's share is 1 - t / T, so that round 1 learns from labels. Released code has 1 - (t - 1) / (T
    - 1): round 1 has a share of 1 and no prototypes yet, so nothing is learned."""

class FedProtoOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull; 0 is local training, or FedAvg with average_model."""
    weights: Literal["counts", "uniform"]
    """Weights of the holders of a class: by their samples of it, or equal."""
    prototypes_from: Literal["after_training", "last_epoch"]
    """Where prototypes come from: a pass after training, or the last epoch's own forward passes."""
    nearest_among: Literal["known", "own"]
    """Classes that the prediction by the nearest prototype may choose: all known ones, or those of the client's
    data."""
    average_model: bool
    """Whether weights are averaged as in FedAvg, too. FedSKC and FedSC print a global accuracy and do not say how they
    get it; this is our choice."""

class FedProxOptions(TypedDict, total=False):
    mu: float
    """Strength of the pull towards the received weights; 0 is FedAvg, bit for bit."""

class FedRCLOptions(TypedDict, total=False):
    weight: float
    """Weight of both terms relative to cross-entropy; 0 is FedAvg."""
    tau: float
    """Temperature of the cosines."""
    beta: float
    """Weight of the penalty relative to the contrast."""
    threshold: float
    """Cosine below which a pair is not penalised."""

class FedRepOptions(TypedDict, total=False):
    head_epochs: int
    """Passes that train the head, whatever local_epochs says."""
    body_epochs: int
    """Passes that then train the body, whatever local_epochs says."""
    weights: Literal["samples", "uniform"]
    """Weights of clients in the mean: by samples, as in released code, or equal, as in the paper."""

class FedRoDOptions(TypedDict, total=False):
    balanced: bool
    """Balanced softmax for the shared head, or plain cross-entropy."""
    gamma: float
    """Strength of the balance; at 0 only classes that the client lacks are left out."""

class FedRSOptions(TypedDict, total=False):
    alpha: float
    """Factor of the logits of classes that the client lacks. With 1 the method is FedAvg."""

class FedSAMOptions(TypedDict, total=False):
    rho: float
    """Length of the ascent. With 0 the method is FedAvg."""
    adaptive: bool
    """FedASAM: scale the ascent by the size of each weight, so that rescaling a layer changes nothing. The authors then
    take rho 0.7."""
    eta: float
    """Number that the adaptive ascent adds to the size of each weight."""

class FedSCOptions(TypedDict, total=False):
    tau: float
    """Temperature of RPCL."""
    neighbours: int
    """M, prototypes that are merged with each prototype."""
    neighbour: Literal["angle", "l1", "l2", "cosine", "kl", "none"]
    """Distance by which neighbours of a prototype are chosen."""
    scale: Literal["dataset", "batch", "none"]
    """The normaliser U: over the client's data set (taken once an epoch), over the batch, or none."""
    detach_scale: bool
    """Whether U is a constant for the gradient."""
    positives: Literal["all", "mean", "self"]
    """Positives of a sample: all prototypes of its class, their clients' mean, or the sample itself (released code)."""
    rpcl_reduce: Literal["sum", "mean_exp"]
    """Sum or mean of the exponentials over the positives."""
    cpdr: Literal["l1", "l2", "mse", "off"]
    """Norm of the regulariser: printed sum of absolute differences, L2 norm, mean square, or off."""
    consistent: Literal["renorm", "zero_fill", "code"]
    """How O treats clients that do not hold a class."""
    prototypes_from: Literal["after_training", "last_epoch"]
    """Where prototypes come from: a pass after training, or the last epoch's own forward passes."""
    lambda_rpcl: float
    """Weight of RPCL."""
    rpcl_ramp: int
    """Rounds over which RPCL's weight grows to its full value; 0 is at once."""
    lambda_cpdr: float
    """Weight of CPDR."""

class FedSKCOptions(TypedDict, total=False):
    tau: float
    """Temperature of LCL."""
    scale: Literal["dataset", "batch", "none"]
    """The normaliser U: over the client's data set (taken once an epoch), over the batch, or none."""
    detach_scale: bool
    """Whether U is a constant for the gradient."""
    denominator: Literal["once", "positive_twice"]
    """Whether the positive counts once in the denominator, or (released code) twice."""
    missing_positive: Literal["mask", "self"]
    """A sample of a class without knowledge is left out, or is its own positive (released code)."""
    lambda_lcl: float
    """Weight of LCL."""
    lcl_ramp: int
    """Rounds over which LCL's weight grows to its full value; 0 is at once."""
    naive_exp: bool
    """Plain exponentials, which overflow (the paper's NaN at tau = 0.01)."""
    silu: bool
    """Whether knowledge is c * sigmoid(c) of the mean logits c, or c itself."""
    knowledge_from: Literal["after_training", "last_epoch"]
    """Where knowledge comes from: a pass after training, or the last epoch's own forward passes."""
    neighbours: int
    """M, rows of knowledge that are merged with each row."""
    sticky_knowledge: bool
    """Whether a class without holders in a round keeps its last row."""
    gda: Literal["paper", "share", "fedavg", "uniform"]
    """Aggregation weights: as printed, on shares of samples instead of counts, by samples, or all equal."""
    gpr: Literal["paper", "affine", "off"]
    """Step of the server between the last model and the new average: as printed (coefficients sum to beta), affine
    (they sum to 1), or off."""
    beta: float
    """Weight of the new average in GPR."""
    gpr_classes: Literal["intersection", "own"]
    """Classes in the variance ratio rho: those of both rounds, or each round's own."""
    gpr_clip: Sequence[float] | None
    """Lower and upper bound of rho. Null is no bound."""

class FedSSAOptions(TypedDict, total=False):
    mu0: float
    """Weight of the local row in the fusion at the first round (t = 0): mu0 cos(pi t / (2 t_stable))."""
    t_stable: int
    """Number of rounds after which this weight is 0."""
    fusion: Literal["literal", "convex"]
    """The global row plus mu times the local one, as printed, or that sum divided by 1 + mu."""
    skip_first_fusion: bool
    """Whether the first round trains from the client's own header."""
    share_bias: bool
    """Whether a class's row is its weights and its bias, or the weights alone."""
    average: Literal["seen", "all"]
    """Rows that the server averages: those of classes that a client holds, or all (LG-FedAvg)."""
    take_over: Literal["seen", "all"]
    """Rows that the client fuses: those of its classes, or all."""
    pool: Literal["sampled", "all_known"]
    """Clients in the average: the round's participants, or the last rows of all clients met so far (released code)."""
    weights: Literal["uniform", "count"]
    """Weights of the holders of a class: equal, or by their samples of it."""
    clip: float | None
    """Largest gradient norm. Null is no bound."""

class FedTGPOptions(TypedDict, total=False):
    weight: float
    """Strength of the clients' pull. The default is HtFLlib's."""
    server_lr: float | None
    """Learning rate of the server's steps. Null takes the run's."""
    server_epochs: int
    """Steps of the server in a round, each over all rows of the round (our choice: released code takes batches). The
    default is HtFLlib's."""
    margin: float
    """Largest value of the margin between prototypes. The default is HtFLlib's."""

class FedUVOptions(TypedDict, total=False):
    variance: float
    """Weight of the classifier's term. With this and uniformity 0 the method is FedAvg."""
    uniformity: float
    """Weight of the features' term."""

class FedYogiOptions(TypedDict, total=False):
    server_lr: float
    """eta, the server's step."""
    beta1: float
    """Share of the last direction in m."""
    tau: float
    """Degree of adaptivity, added to sqrt(v)."""
    v0: float | None
    """First v. Null is tau squared."""
    beta2: float
    """Inertia of v: a value near 1 lets v move slowly."""

class FlocoOptions(TypedDict, total=False):
    ends: int
    """M, the ends of the simplex of heads; 1 is FedAvg."""
    tau: int | None
    """First round of clients' own parts. Null is half of the run's rounds, 2 at least."""
    rho: float
    """rho, the radius of a client's part, in the l1 norm."""

class FMLOptions(TypedDict, total=False):
    alpha: float
    """Share of cross-entropy in the loss of the own net; 1 switches its distillation off."""
    beta: float
    """Share of cross-entropy in the loss of the meme; 1 switches its distillation off."""
    meme: str | None
    """Registered model of the shared net. Null takes the run's own; a name is needed where clients have different
    nets."""
    weights: Literal["samples", "uniform"]
    """Weights of memes in the mean: by samples (our choice: the paper is not explicit), or equal, as in released
    code."""
    start: Literal["common", "drawn"]
    """First weights of own nets: the common ones (our choice), or drawn by each client, as in released code."""

class FPLOptions(TypedDict, total=False):
    prototypes_from: Literal["after_training", "last_epoch"]
    """Where class means come from: a pass after training, or the last epoch's own forward passes."""
    keep_absent: bool
    """Whether a class that no participant holds keeps its prototypes. Released code drops them."""
    tau: float
    """Temperature of the contrast."""
    contrast: float
    """Weight of the contrast with the cluster prototypes."""
    pull: float
    """Weight of the pull to the mean of a class's cluster prototypes."""

class GPFLOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the pull of general features to the received embeddings."""
    decay: float
    """mu, the weight decay of the embeddings and of the conditional nets."""
    inputs: Literal["received", "own"]
    """Embeddings that give the conditional inputs: those received, or, as released, those that the client trained in
    its last round (zeros before)."""

class HeteroFLOptions(TypedDict, total=False):
    scaler: bool
    """Divide the outputs of hidden layers by the client's rate in training."""
    mask: bool
    """Set the logits of classes that the client lacks to 0 in training."""
    weights: Literal["uniform", "samples"]
    """Weights of the clients that hold a number."""

class IFCAOptions(TypedDict, total=False):
    clusters: int
    """K, the number of models; 1 is FedAvg."""
    weights: Literal["samples", "uniform"]
    """Weights of the clients of a cluster: by their samples, or equal."""
    share_body: bool
    """Whether the clusters have one body, averaged over all clients, and a head each."""

class MOONOptions(TypedDict, total=False):
    mu: float
    """Weight of the contrast; 0 is FedAvg."""
    tau: float
    """Temperature of the contrast."""

class PerFedAvgOptions(TypedDict, total=False):
    alpha: float
    """Learning rate of the inner step."""
    beta: float | None
    """Learning rate of the outer step. Null takes the run's."""
    variant: Literal["fo", "hf"]
    """fo drops second derivatives; hf takes the Hessian from the difference of two gradients."""
    delta: float
    """Distance between the points of these two gradients."""

class PFedFDAOptions(TypedDict, total=False):
    beta: float | None
    """Share of a client's own means and covariance in the mixture with the received ones. Null chooses it on two halves
    of the client's features; 1 is the local variant."""
    two_betas: bool
    """Whether means and covariance get a chosen share each."""
    eps: float
    """Smoothing of class shares, and of covariances by the identity."""
    ridge: Literal["identity", "small"]
    """Added to a client's covariance: 1e-4 of the identity (small), or the identity and 1e-4 in every entry, as
    released."""
    features_from: Literal["training", "after_training"]
    """Where features come from: all passes of training, or one pass after it."""
    mask_unknown: bool
    """Whether classes that no client has held yet are left out. The paper gives them random means."""

class PFedMeOptions(TypedDict, total=False):
    lam: float
    """lambda, how strongly the personal model is held to w."""
    inner_steps: int
    """K, steps on each batch towards the personal model."""
    personal_lr: float
    """Learning rate of these steps."""
    decay: float
    """Weight decay of these steps (the authors' mu)."""
    beta: float
    """The server's step."""
    weights: Literal["uniform", "samples"]
    """Weights of clients in the mean: equal, as in Algorithm 1, or by samples."""

class ProtoNormOptions(TypedDict, total=False):
    weight: float
    """lambda, the strength of the clients' pull; 0 is local training."""
    scale: float
    """s, the length to which clients scale the unit prototypes."""
    server_steps: int
    """Steps in a round by which the server spreads the prototypes on the sphere."""
    server_lr: float
    """Size of the first of these steps; it is multiplied by 0.95 after steps 1, 11, 21, ..."""
    server_momentum: float
    """Share of a step's velocity that the next one keeps."""
    keep_absent: bool
    """Whether a class that no participant holds keeps its prototype. Released code drops it."""

class QFedAvgOptions(TypedDict, total=False):
    q: float
    """How much more a client with a high loss counts. With 0 all participants count equally."""

class SCAFFOLDOptions(TypedDict, total=False):
    option: Literal[1, 2]
    """How a client renews its control variate: 2 from the steps that it made, 1 as the gradient over all its data at
    the received weights (one more pass)."""
    server_lr: float
    """eta_g, the server's step towards the mean."""

class RunKeys(TypedDict, total=False):
    """Keys of a run's config, except method, scenario and model."""

    preset: str
    """Preset of the method's options: `paper` follows the printed equations, `authors` the released code, and `sound`
    repairs steps that fail in practice. A method may declare others. `authors` also brings the released optimiser,
    epochs and batch size, unless this config sets them."""
    share: Literal["all", "trainable"]
    """Parameters that travel and are stored: `all`, or `trainable`, without the frozen ones."""
    rounds: int
    """Number of rounds of communication."""
    participation: float
    """Share of the clients that take part in a round, above 0 and at most 1."""
    local_epochs: int
    """Number of passes over its training data that a client makes in a round."""
    batch_size: int
    """Number of samples in a batch of local training."""
    optimizer: OptimizerKeys | str
    """Section of the clients' optimiser, or its name; adam takes lr 0.001."""
    augment: AugmentationKeys
    """Section of random changes of training images."""
    precision: Literal["float32", "tf32", "bfloat16"]
    """Number format of training. float32 is that of IEEE 754 on every device. tf32 lets an NVIDIA GPU round the factors
    of products to 10 bits. bfloat16 trains nets below their heads in it, with float32 weights, losses and tests. Both
    are faster on processors that support them, and change the results."""
    evaluation: EvaluationKeys
    """Section of tests and of the round that counts."""
    early_stopping: EarlyStoppingKeys | None
    """Section of early stopping on validation data; null runs all rounds."""
    drift: DriftKeys | bool | None
    """Section of the drift that is measured in every round, or true alone; null measures none."""
    devices: DevicesKeys | None
    """Section of the clients' devices and lines in virtual time, or true alone; null measures none."""
    checkpoint: CheckpointKeys
    """Section of checkpoints."""
    seed: int
    """Seed of everything random in the run."""
    engine: EngineChoiceKeys | str
    """Section of the engine that runs the clients, or its name alone."""
    flower: FlowerKeys
    """Section of a federation over Flower."""
    plugins: Mapping[str, str]
    """Python files with parts of your own, as a list: [mine.py], relative to the config. A run stores their SHA-256 by
    name, and a stored config loads none."""
    options: Mapping[str, Mapping[str, Any]]
    """Options of methods by method name; usually written as a section named after the method."""
    apfl: APFLOptions
    ccvr: CCVROptions
    central: _Section
    cfl: CFLOptions
    copa: COPAOptions
    ditto: DittoOptions
    fd: FDOptions
    fed3r: RidgeHeadOptions
    fedadagrad: FedAdagradOptions
    fedadam: FedAdamOptions
    fedala: FedALAOptions
    fedamp: FedAMPOptions
    fedas: FedASOptions
    fedasync: FedAsyncOptions
    fedavg: _Section
    fedavgm: ServerMomentumOptions
    fedbabu: FedBABUOptions
    fedbn: FedBNOptions
    fedbuff: FedBuffOptions
    fedcda: FedCDAOptions
    fedcgs: GaussianHeadOptions
    fedclassavg: FedClassAvgOptions
    fedco2: FedCO2Options
    fedcof: CovarianceHeadOptions
    fedcompass: FedCompassOptions
    fedcp: FedCPOptions
    feddbe: DebiasedOptions
    feddecorr: DecorrOptions
    feddf: FedDFOptions
    feddisco: FedDiscoOptions
    feddistill: FedDistillOptions
    feddw: DWOptions
    feddyn: FedDynOptions
    fedem: FedEMOptions
    fedexp: FedExPOptions
    fedfomo: FedFomoOptions
    fedgen: FedGenOptions
    fedgh: FedGHOptions
    fedkd: FedKDOptions
    fedl2g: FedL2GOptions
    fedlc: FedLCOptions
    fedmd: FedMDOptions
    fedmrl: FedMRLOptions
    fedncm: OneShotOptions
    fednh: FedNHOptions
    fednova: _Section
    fedntd: FedNTDOptions
    fedorgp: FedORGPOptions
    fedpac: FedPACOptions
    fedpcl: FedPCLOptions
    fedper: _Section
    fedplvm: FedPLVMOptions
    fedproc: FedProcOptions
    fedproto: FedProtoOptions
    fedprox: FedProxOptions
    fedrcl: FedRCLOptions
    fedrep: FedRepOptions
    fedrod: FedRoDOptions
    fedrs: FedRSOptions
    fedsam: FedSAMOptions
    fedsc: FedSCOptions
    fedskc: FedSKCOptions
    fedssa: FedSSAOptions
    fedtgp: FedTGPOptions
    feduv: FedUVOptions
    fedyogi: FedYogiOptions
    floco: FlocoOptions
    fml: FMLOptions
    fpl: FPLOptions
    gpfl: GPFLOptions
    heterofl: HeteroFLOptions
    ifca: IFCAOptions
    lgfedavg: _Section
    local: _Section
    moon: MOONOptions
    perfedavg: PerFedAvgOptions
    pfedfda: PFedFDAOptions
    pfedme: PFedMeOptions
    protonorm: ProtoNormOptions
    qfedavg: QFedAvgOptions
    scaffold: SCAFFOLDOptions

class CompareKeys(TypedDict, total=False):
    """The same keys for several runs: each may be a list of values to compare."""

    preset: str | Sequence[str]
    """Preset of the method's options: `paper` follows the printed equations, `authors` the released code, and `sound`
    repairs steps that fail in practice. A method may declare others. `authors` also brings the released optimiser,
    epochs and batch size, unless this config sets them."""
    share: Literal["all", "trainable"] | Sequence[Literal["all", "trainable"]]
    """Parameters that travel and are stored: `all`, or `trainable`, without the frozen ones."""
    rounds: int | Sequence[int]
    """Number of rounds of communication."""
    participation: float | Sequence[float]
    """Share of the clients that take part in a round, above 0 and at most 1."""
    local_epochs: int | Sequence[int]
    """Number of passes over its training data that a client makes in a round."""
    batch_size: int | Sequence[int]
    """Number of samples in a batch of local training."""
    optimizer: OptimizerKeys | str | Sequence[OptimizerKeys | str]
    """Section of the clients' optimiser, or its name; adam takes lr 0.001."""
    augment: AugmentationKeys | Sequence[AugmentationKeys]
    """Section of random changes of training images."""
    precision: Literal["float32", "tf32", "bfloat16"] | Sequence[Literal["float32", "tf32", "bfloat16"]]
    """Number format of training. float32 is that of IEEE 754 on every device. tf32 lets an NVIDIA GPU round the factors
    of products to 10 bits. bfloat16 trains nets below their heads in it, with float32 weights, losses and tests. Both
    are faster on processors that support them, and change the results."""
    evaluation: EvaluationKeys | Sequence[EvaluationKeys]
    """Section of tests and of the round that counts."""
    early_stopping: EarlyStoppingKeys | Sequence[EarlyStoppingKeys | None] | None
    """Section of early stopping on validation data; null runs all rounds."""
    drift: DriftKeys | bool | Sequence[DriftKeys | bool | None] | None
    """Section of the drift that is measured in every round, or true alone; null measures none."""
    devices: DevicesKeys | Sequence[DevicesKeys | None] | None
    """Section of the clients' devices and lines in virtual time, or true alone; null measures none."""
    checkpoint: CheckpointKeys
    """Section of checkpoints."""
    seed: int | Sequence[int]
    """Seed of everything random in the run."""
    engine: EngineChoiceKeys | str
    """Section of the engine that runs the clients, or its name alone."""
    flower: FlowerKeys
    """Section of a federation over Flower."""
    plugins: Mapping[str, str] | Sequence[Mapping[str, str]]
    """Python files with parts of your own, as a list: [mine.py], relative to the config. A run stores their SHA-256 by
    name, and a stored config loads none."""
    options: Mapping[str, Mapping[str, Any]]
    """Options of methods by method name; usually written as a section named after the method."""
    apfl: APFLOptions | Sequence[APFLOptions]
    ccvr: CCVROptions | Sequence[CCVROptions]
    central: _Section | Sequence[_Section]
    cfl: CFLOptions | Sequence[CFLOptions]
    copa: COPAOptions | Sequence[COPAOptions]
    ditto: DittoOptions | Sequence[DittoOptions]
    fd: FDOptions | Sequence[FDOptions]
    fed3r: RidgeHeadOptions | Sequence[RidgeHeadOptions]
    fedadagrad: FedAdagradOptions | Sequence[FedAdagradOptions]
    fedadam: FedAdamOptions | Sequence[FedAdamOptions]
    fedala: FedALAOptions | Sequence[FedALAOptions]
    fedamp: FedAMPOptions | Sequence[FedAMPOptions]
    fedas: FedASOptions | Sequence[FedASOptions]
    fedasync: FedAsyncOptions | Sequence[FedAsyncOptions]
    fedavg: _Section | Sequence[_Section]
    fedavgm: ServerMomentumOptions | Sequence[ServerMomentumOptions]
    fedbabu: FedBABUOptions | Sequence[FedBABUOptions]
    fedbn: FedBNOptions | Sequence[FedBNOptions]
    fedbuff: FedBuffOptions | Sequence[FedBuffOptions]
    fedcda: FedCDAOptions | Sequence[FedCDAOptions]
    fedcgs: GaussianHeadOptions | Sequence[GaussianHeadOptions]
    fedclassavg: FedClassAvgOptions | Sequence[FedClassAvgOptions]
    fedco2: FedCO2Options | Sequence[FedCO2Options]
    fedcof: CovarianceHeadOptions | Sequence[CovarianceHeadOptions]
    fedcompass: FedCompassOptions | Sequence[FedCompassOptions]
    fedcp: FedCPOptions | Sequence[FedCPOptions]
    feddbe: DebiasedOptions | Sequence[DebiasedOptions]
    feddecorr: DecorrOptions | Sequence[DecorrOptions]
    feddf: FedDFOptions | Sequence[FedDFOptions]
    feddisco: FedDiscoOptions | Sequence[FedDiscoOptions]
    feddistill: FedDistillOptions | Sequence[FedDistillOptions]
    feddw: DWOptions | Sequence[DWOptions]
    feddyn: FedDynOptions | Sequence[FedDynOptions]
    fedem: FedEMOptions | Sequence[FedEMOptions]
    fedexp: FedExPOptions | Sequence[FedExPOptions]
    fedfomo: FedFomoOptions | Sequence[FedFomoOptions]
    fedgen: FedGenOptions | Sequence[FedGenOptions]
    fedgh: FedGHOptions | Sequence[FedGHOptions]
    fedkd: FedKDOptions | Sequence[FedKDOptions]
    fedl2g: FedL2GOptions | Sequence[FedL2GOptions]
    fedlc: FedLCOptions | Sequence[FedLCOptions]
    fedmd: FedMDOptions | Sequence[FedMDOptions]
    fedmrl: FedMRLOptions | Sequence[FedMRLOptions]
    fedncm: OneShotOptions | Sequence[OneShotOptions]
    fednh: FedNHOptions | Sequence[FedNHOptions]
    fednova: _Section | Sequence[_Section]
    fedntd: FedNTDOptions | Sequence[FedNTDOptions]
    fedorgp: FedORGPOptions | Sequence[FedORGPOptions]
    fedpac: FedPACOptions | Sequence[FedPACOptions]
    fedpcl: FedPCLOptions | Sequence[FedPCLOptions]
    fedper: _Section | Sequence[_Section]
    fedplvm: FedPLVMOptions | Sequence[FedPLVMOptions]
    fedproc: FedProcOptions | Sequence[FedProcOptions]
    fedproto: FedProtoOptions | Sequence[FedProtoOptions]
    fedprox: FedProxOptions | Sequence[FedProxOptions]
    fedrcl: FedRCLOptions | Sequence[FedRCLOptions]
    fedrep: FedRepOptions | Sequence[FedRepOptions]
    fedrod: FedRoDOptions | Sequence[FedRoDOptions]
    fedrs: FedRSOptions | Sequence[FedRSOptions]
    fedsam: FedSAMOptions | Sequence[FedSAMOptions]
    fedsc: FedSCOptions | Sequence[FedSCOptions]
    fedskc: FedSKCOptions | Sequence[FedSKCOptions]
    fedssa: FedSSAOptions | Sequence[FedSSAOptions]
    fedtgp: FedTGPOptions | Sequence[FedTGPOptions]
    feduv: FedUVOptions | Sequence[FedUVOptions]
    fedyogi: FedYogiOptions | Sequence[FedYogiOptions]
    floco: FlocoOptions | Sequence[FlocoOptions]
    fml: FMLOptions | Sequence[FMLOptions]
    fpl: FPLOptions | Sequence[FPLOptions]
    gpfl: GPFLOptions | Sequence[GPFLOptions]
    heterofl: HeteroFLOptions | Sequence[HeteroFLOptions]
    ifca: IFCAOptions | Sequence[IFCAOptions]
    lgfedavg: _Section | Sequence[_Section]
    local: _Section | Sequence[_Section]
    moon: MOONOptions | Sequence[MOONOptions]
    perfedavg: PerFedAvgOptions | Sequence[PerFedAvgOptions]
    pfedfda: PFedFDAOptions | Sequence[PFedFDAOptions]
    pfedme: PFedMeOptions | Sequence[PFedMeOptions]
    protonorm: ProtoNormOptions | Sequence[ProtoNormOptions]
    qfedavg: QFedAvgOptions | Sequence[QFedAvgOptions]
    scaffold: SCAFFOLDOptions | Sequence[SCAFFOLDOptions]

class OwnSplitKeys(TypedDict, total=False):
    train: float
    """Training part of a client's samples, relative to `val` and `test` (any sum)."""
    val: float
    """Validation part of each client's samples, relative to `train` and `test`."""
    test: float
    """Test part of each client's samples, relative to `train` and `val`."""
    pool: Literal["train", "all"]
    """Samples that are dealt and split: `train` leaves the official tests out, `all` adds them."""

class PublicKeys(TypedDict, total=False):
    source: str
    """Data source of the server's data, by name; add its keys next to this one."""
    samples: int | None
    """Training samples that the server holds, drawn at random; null: all."""

class HeldOutKeys(TypedDict, total=False):
    share: float | None
    """Share of clients with training and test data, at least one."""
    clients: Sequence[int] | None
    """Ids of the clients, as the partition numbers them, instead of a share."""
    domain: str | None
    """Name of a domain of the source, all of whose data are held out, instead of clients. The clients hold the other
    domains, and the domain is tested as one newcomer."""

class GroupPatternKeys(TypedDict, total=False):
    pattern: str
    """Regular expression with one group in parentheses: the id in each path below the class folder."""

class ImputeKeys(TypedDict, total=False):
    numbers: Literal["mean", "median", "most_frequent", "constant"] | Mapping[Literal["constant"], float | str]
    """Value for missing numbers: the `mean`, the `median` or the `most_frequent` number of the training rows (of
    equally frequent ones the smallest), or {constant: number}; `constant` alone is 0."""
    words: Literal["most_frequent", "constant"] | Mapping[Literal["constant"], float | str]
    """Value for missing words: the `most_frequent` word of the training rows, or {constant: word}, where the word may
    be a new one; `constant` alone is the word missing."""
    indicator: bool | Sequence[str]
    """Whether columns that lack training cells get a further feature `missing(column)`, 1 or 0; or a list of the
    columns that get one."""
    columns: Mapping[
        str, Literal["mean", "median", "most_frequent", "constant"] | Mapping[Literal["constant"], float | str]
    ]
    """Values of single columns, in place of `numbers` and `words`."""

class ScenarioKeys(TypedDict, total=False):
    """Keys of a scenario: those of all, and of the sources and partitions."""

    partition: str
    """Partition, by name: the rule that deals samples to clients. Add its keys next to it."""
    clients: int
    """Number of clients; partition natural counts the owners unless it is given."""
    val: float
    """Share of each client's training samples that is held out for validation."""
    split: OwnSplitKeys | None
    """Proportions of a split of each client's samples into training, validation and test parts, which replaces `val`
    and tests each client on its own part; null keeps the official test set."""
    tests: Literal["shares", "matched"]
    """Test views of the clients: `shares` deals the test set in the shares of the training set, `matched` draws test
    samples in the client's own mix of classes."""
    public: float | PublicKeys | _Section
    """Public data at the server, for methods that use some: a share of the training samples from 0 to below 1, or
    another source as {source: name, samples: number, its keys}."""
    skews: Sequence[Mapping[str, Any]]
    """List of skews that change the clients' data, in this order, each as {name: skew, its keys}."""
    attack: Mapping[str, Any] | str | None
    """Attack of misbehaving clients: its name, or {name: attack, share: of clients, its keys}; or null."""
    held_out: HeldOutKeys | Sequence[int] | None
    """Clients that never train: {share: share of the clients}, a list of their ids, or all data of one domain, as
    {domain: its name}; the trained run is tested on them as newcomers. With null all train."""
    group: str | GroupPatternKeys | _Section | None
    """Groups of samples, such as persons, that must not be parted between training, validation and test rows. The value
    is the name of a column, `owner`, `PatientID` of DICOM files (hashed), {pattern: a regular expression} for file
    names, or `none` to say that there are no groups."""
    shared_groups: Literal["refuse", "drop_test", "drop_train"]
    """Groups that a given test set shares with the training set: refuse the data, or drop the rows of these groups from
    the test set or from the training set."""
    labels: Literal["single", "multi"]
    """Labels of a sample: `single` is one class of several, `multi` is any number of labels that do not exclude each
    other, each present, absent or not recorded."""
    cross_owner: Literal["keep", "refuse"]
    """Whether groups may have rows at several clients (`keep`), or such data are refused."""
    seed: int | None
    """Seed of the partition and the order of the data; null takes the run's seed."""
    offline: bool
    """Whether the network may not be used; only the source `hf` uses it."""
    normalise: Literal["own", "unit", "half", "published"]
    """Scaling of the pixels: `own` subtracts the mean and divides by the standard deviation of this training set, per
    channel; `unit` gives values in [0, 1]; `half` gives values in [-1, 1] (mean and deviation 0.5); `published` takes
    the values that the papers print."""
    digits: Literal["digits", "mnist"]
    """Digits that are blended in: scikit-learn's 8x8 images, or MNIST's."""
    path: Path | str | None
    """Folder, archive or .npz file of MNIST for `digits: mnist`; null: `$FEDLOOM_DATA/mnist`."""
    size: int
    """Height and width of the images, in pixels."""
    copies: int
    """Number of images made of each digit, each on another patch."""
    source_seed: int
    """Seed of the images; the same seed gives the same images."""
    verify: bool
    """Whether archives are compared with the publisher's MD5 where there is one."""
    limit: int | None
    """Number of training images that are used, the first ones of the files; null takes all."""
    label: str | Sequence[str]
    """Column of the class; with `labels: multi` a list of columns, one for each label, of 1 and 0, yes and no, or true
    and false, where an empty cell was not recorded."""
    label_separator: str | None
    """With `labels: multi`, text between the labels in one column."""
    no_label: str | None
    """With `label_separator`, the word for a sample without any label."""
    owner: str | None
    """Column of the owner of a row, such as its hospital; null if rows have none."""
    features: Sequence[str] | None
    """Columns to learn from; null takes all columns but label and owner."""
    categorical: Sequence[str]
    """Columns of numbers that are names of categories; of the label only those that occur are classes."""
    test_share: float
    """Share of each class, and with `owner` of each owner's rows, that is held out for tests where there is no table of
    test rows; the same rows in every run."""
    drop: Sequence[str]
    """Columns that are left out."""
    missing: Sequence[str] | None
    """Cells that stand for a missing value in all columns, in addition to empty cells. By default NA, NaN, null and the
    like are missing among numbers; as a label they are refused."""
    incomplete: Literal["refuse", "drop", "impute"]
    """Rows with a missing value: refuse the file, drop the rows and say how many, or impute the missing features. Rows
    without a label, owner or group are dropped then, since these are never imputed."""
    drop_columns: Mapping[Literal["above"], float]
    """Leaves out columns that lack more than a share of the training cells, as {above: share}."""
    impute: ImputeKeys | None
    """Section of the values for missing cells, with `incomplete: impute`; null takes its defaults."""
    max_bad_samples: int
    """Largest number of samples that may be unreadable: damaged files, or rows of a table with a word among numbers.
    They are left out, and a note names them; one more is an error."""
    test_path: Path | str | None
    """Path of another file with the test rows; null holds out a share of the rows."""
    decimal: Literal[".", ","]
    """Decimal separator of numbers."""
    thousands: Literal[",", ".", "'", " ", "_"] | None
    """Separator between groups of three digits."""
    bounds: Literal["refuse", "value"]
    """Cells such as <40, >=90 or ~51 among numbers: refuse the column, or read the number itself."""
    separator: str
    """Character between the cells of a row."""
    encoding: str
    """The encoding of the file's text, such as latin-1 or cp1252."""
    per_domain: int | None
    """Number of training pictures of a domain that are used, the first ones; null: all."""
    parts: Sequence[str | Mapping[str, Any]]
    """Sources of the domains: names, or mappings {name: domain, source: source, and its keys}."""
    paths: Mapping[str, Path | str]
    """Path of the files of a part, by its name."""
    channels: Literal[1, 3]
    """Number of channels of the images: 1 for gray, 3 for colour."""
    pool_splits: bool
    """Whether a domain's splits are merged and another 20 % of each class held out, as in FedBN."""
    subset: Literal["bymerge", "balanced"] | str | None
    """Part of EMNIST: bymerge (697,932 + 116,323 images) or balanced (112,800 + 18,800)."""
    novel: Literal["val", "test"]
    """Classes of the test set: the 20 validation or the 20 test classes."""
    per_client: int
    """Number of training points of each of the four clients."""
    test_points: int
    """Number of test points, uniform in the cube."""
    part: str | None
    """Column that says which rows are train, val and test; null holds out `test_share`. Without test rows, the val rows
    are the test set."""
    file: str
    """Column of the files' names, with folders below `root`."""
    root: Path | str | None
    """Folder or archive of the pictures; null takes the folder of `path`."""
    suffix: str | None
    """Text that is added to each name; null adds none."""
    digest: str
    """Fingerprint of the scenario; a run folder can only be resumed with the same data."""
    dataset: str
    """Name of the data set on the hub, or path of a local folder."""
    revision: str | None
    """Branch, tag or commit hash of the data set; null takes the newest version. Only a commit hash lets the parsed
    arrays be cached."""
    train_split: str
    """Name of the split with the training samples."""
    test_split: str | None
    """Name of the split with the test samples; null holds out 20 % of each class, the same in every run."""
    image: str
    """Column of the images."""
    text: str | None
    """Column of the texts; null reads images."""
    vocabulary: int
    """Number of token ids: 0 pads, 1 is unknown, others are the most frequent training tokens."""
    length: int
    """Number of tokens of a text; longer texts are cut and shorter ones padded at the end."""
    tokens: Literal["words", "characters"] | None
    """Unit that texts are split into: `words`, or `characters` for texts without spaces between words (Chinese, Thai,
    DNA). Null splits into words, and refuses texts without spaces."""
    classes: Sequence[str] | Sequence[str | int]
    """Names of all classes, or labels, in order of number."""
    shape: Sequence[int] | None
    """Shape of a sample; null takes the length of `features`."""
    values: Literal["numbers", "bytes"]
    """Type of the stored values: `numbers`, or `bytes` from 0 to 255, as in pictures."""
    mean: Sequence[float] | None
    """Mean that is subtracted from stored values, per channel or feature, before a net sees them."""
    std: Sequence[float] | None
    """Standard deviation that stored values are divided by, after `mean`, per channel or feature."""
    table: str
    """R package and table, with a slash between them."""
    per_class: int
    """Number of training images of each class."""
    test_per_class: int
    """Number of test images of each class."""
    model_spread: float
    """How far the devices' models lie apart, the paper's alpha."""
    input_spread: float
    """How far the devices' inputs lie apart, the paper's beta."""
    same_model: bool
    """Whether all devices share one model, of entries N(0, 1), and one distribution of inputs, with mean 0: the paper's
    synthetic-IID. Both spreads are then without effect."""
    devices: int
    """Number of devices."""
    train_file: str
    """File name of the training texts."""
    test_file: str
    """File name of the test texts."""
    classes_per_client: int
    """Number of classes that each client holds."""
    alpha: float
    """Concentration of the Dirichlet distribution. Small values mean strong skew (at 0.1 most clients see few classes),
    large values mean even shares."""
    min_samples: int
    """Smallest number of training samples of a client; the draw is repeated until every client has as many. With 0
    there is one plain draw, whose shares are independent between classes, as in FedDW. If no draw does, the smallest
    clients get samples of the largest."""
    max_draws: int
    """Largest number of draws before the partition is refused."""
    domain_parts: int
    """Number of parts that each domain is cut into."""
    clients_per_domain: int
    """Number of parts of each domain that become clients; the other parts are not used."""
    domain_part: int | Sequence[int]
    """First part of a domain that becomes a client, from 0: one number, or a list, one a domain."""
    one_in: int | Sequence[int]
    """Thinning of a part: 1 in so many samples of each class is kept, at least one. It is one number, or a list with
    one per domain; Fed-CO2's Office has 6, 7, 1 and 2."""
    min_per_class: int
    """Smallest number of samples of each class in a part; a domain is cut again until it holds."""
    min_test: int
    """Smallest number of test samples of a client; it is drawn again until all have as many."""
    balanced: bool
    """Whether a client that holds its fair part of all samples gets no more classes, as released."""
    partitioner: str
    """Class name of the partitioner in `flwr_datasets.partitioner`."""
    options: Mapping[str, Any]
    """Arguments of the partitioner. Unless they are set here, `num_partitions` is the number of clients, `partition_by`
    is "label" and `seed` is drawn from the scenario's seed."""
    partition_file: Path | str
    """Path of the JSON file with the index lists of the clients."""
    owners: Path | str | None
    """Path of a `.npy` file with the id (number or word) of each training sample; null: the domains."""
    test_owners: Path | str | None
    """Path of a `.npy` file with each test sample's id; null deals in the clients' class shares."""
    sample_ids: bool
    """Whether `clients` may be smaller than the number of ids, which are then chosen at random."""
    beta: float
    """Concentration of the Dirichlet distribution in a superclass; small values mean strong skew."""
    low: float
    """Lower end of the uniform draw that decides a client's share of a class."""
    high: float
    """Upper end of the uniform draw that decides a client's share of a class."""

class NeedsKeys(TypedDict, total=False):
    goal: Literal["global", "personal"] | None
    """One model for all (global), or a model for each client (personal); null reads the config's protocol."""
    nets: Literal["equal", "different"] | None
    """Whether the clients' networks are equal or different; null reads the config's models."""
    traffic: float | None
    """Most traffic of a round, as a multiple of FedAvg's."""
    stateless: bool
    """Clients keep nothing between rounds."""
    newcomers: bool
    """A client that never trained gets a trained model at once."""
    secret_labels: bool
    """Uploads have no counts or means by class."""
    secure_sums: bool
    """The server sees sums over clients only (secure aggregation)."""
    dp: bool
    """Uploads are made differentially private (the wrapper dp)."""
