"""The networks of `tools/network_lists.py`: GROUPS, lists of Network.

A row is a small network of its family: the families of a package differ in the operators that they use, its sizes do not. Weights
are random, so nothing is downloaded.
"""

from collections.abc import Callable
from typing import NamedTuple


class Network(NamedTuple):
    """A network and what it is called with.

    make    returns the module
    inputs  returns the arguments of a call: tensors, or any structure that `sol.optimize` takes. Its argument is the batch size
    is_open whether one `sol.optimize` serves both batch sizes: the first size of each tensor is then open. If not, the network is
            optimized for each batch size
    """

    name: str
    make: Callable
    inputs: Callable
    is_open: bool = True


def images(size, channels=3):
    """Returns the function `inputs` of a network that takes images."""

    def make(n):
        import torch

        return [torch.randn(n, channels, size, size)]

    return make


# ---- timm: the smallest network of each of its modules, and one of each further family in it ----

# name[:size of the images][:arguments of the constructor]. Without a size: that of the network's own configuration.
TIMM = """
beit_base_patch16_224::depth=2 halonet_h1 mobileone_s0 cait_xxs24_224::depth=2
coat_tiny::serial_depths=(1,1,1,1),parallel_depth=1 convit_tiny::depth=2 convmixer_768_32
convnext_zepto_rms::depths=(1,1,1,1) cpubone_nano crossvit_tiny_240 csatv2:256 cs3darknet_focus_s
cspnext_tiny davit_tiny::depths=(1,1,1,1) deepseek_vit_412m:154:depth=2
deit_tiny_patch16_224::depth=2 densenet121::block_config=(2,2,2,2) dla46x_c dpn48b
edgenext_xx_small::depths=(1,1,1,1) efficientformer_l1::depths=(1,1,1,1)
efficientformerv2_s0::depths=(1,1,1,1) mnasnet_small efficientvim_m1::depths=(1,1,1)
efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224::depth=2 fasternet_t0::depths=(1,1,1,1)
fastvit_t8::layers=(1,1,1,1) focalnet_tiny_srf gcvit_xxtiny
gemma4_vit_167m:192:depth=2 ghostnet_050 hardcorenas_b hgnetv2_b0 hiera_tiny_224::stages=(1,1,1,1)
hieradet_small::stages=(1,1,1,1) hrnet_w18_small iformer_t inception_next_atto::depths=(1,1,1,1)
inception_resnet_v2 inception_v3 inception_v4 lcnetv2_small levit_128s::depth=(1,1,1) lowformer_b0
mambaout_femto::depths=(1,1,1,1) test_maxvit poolformerv2_s12
gmlp_ti16_224 mobilenetv3_small_050 mobilenetv5_base:128 mobilevit_xxs
mvitv2_tiny naflexvit_base_patch16_gap:96:depth=2 nasnetalarge
nest_tiny nextvit_small nf_regnet_b0 pit_ti_224::depth=(1,1,1) pnasnet5large
pvt_v2_b0::depths=(1,1,1,1) qwen3_vit_88m:192:depth=2 rdnet_tiny regnetx_002 repghostnet_050
repvit_m1 res2next50 resnest14d::layers=(1,1,1,1) resnet10t resnetv2_18 rexnet_100 selecsls42
legacy_seresnet18 sequencer2d_s::layers=(1,1,1,1) shvit_s1::depth=(1,1,1) skresnet18
starnet_s050::depths=(1,1,1,1) swiftformer_xs::layers=(1,1,1,1)
swin_tiny_patch4_window7_224::depths=(1,1,1,1) swinv2_tiny_window16_256::depths=(1,1,1,1)
swinv2_cr_tiny_224::depths=(1,1,1,1) tiny_vit_5m_224::depths=(1,1,1,1)
tnt_s_legacy_patch16_224::depth=2 tresnet_m::layers=(1,1,1,1) twins_svt_small::depths=(1,1,1,1)
vgg11 visformer_tiny::depth=2 test_vit vit_tiny_r_s16_p8_224 test_vit_relpos
samvit_base_patch16_224::depth=3 vitamin_small_224::depth=2 volo_d1_224 ese_vovnet19b_slim_dw
legacy_xception xception41p xcit_nano_12_p8_224::depth=2 test_vit2 test_vit3 test_vit4
flexivit_small::depth=2 test_coatnet coatnet_nano_cc_224 coatnext_nano_rw_224
maxxvit_rmlp_nano_rw_256::depths=(1,1,1,1) maxxvitv2_nano_rw_256 maxvit_tiny_pm_256
eca_botnext26ts_256 eca_halonext26ts lambda_resnet26rpt_256 bat_resnext26ts gcresnext26ts
repvgg_a0 gernet_s regnetz_b16 regnetz_b16_evos resnet50_mlp resnet50_clip resnet51q
mobilenet_edgetpu_v2_xs mixnet_s mobilenetv1_100 efficientnet_b0 efficientnet_b0_gn
efficientnet_blur_b0 efficientnet_b0_g16_evos efficientnet_cc_b0_4e efficientnetv2_rw_t
tf_efficientnet_b0 tf_mixnet_s fbnetc_100 spnasnet_100 tinynet_e semnasnet_075
tf_mobilenetv3_small_075 mobilenetv4_conv_small mobilenetv4_hybrid_medium_075
mobilenetv4_conv_aa_medium mobilenetv4_conv_blur_medium fbnetv3_b
vit_pe_core_tiny_patch16_384:192:img_size=192 vit_pe_spatial_tiny_patch16_512:192:img_size=192
vit_small_patch16_dinov3::depth=2 vit_small_patch16_rope_224::depth=2
vit_small_patch16_rope_mixed_224::depth=2 vit_medium_patch16_rope_reg1_gap_256::depth=2 test_nfnet
eca_nfnet_l0 nf_ecaresnet26 regnety_002 regnetz_005 regnetv_040 regnety_040_sgn resnet18d
ecaresnet26t resnetblur18 resnetaa34d resnet50_gn seresnet18 resnetrs50
caformer_s18 convformer_s18 poolformer_s12
gmixer_12_224 resmlp_12_224 mixer_s32_224
resnetv2_50x1_bit resnetv2_50d_evos resnetv2_50d_frn resnetv2_50d_gn rexnetr_100 ghostnetv2_100
ghostnetv3_050 cs3sedarknet_xdw cspresnext50 cspdarknet53 darknetaa53 mobilevitv2_050
convnextv2_atto::depths=(1,1,1,1) convnext_atto::depths=(1,1,1,1)
convnext_atto_ols::depths=(1,1,1,1) test_convnext2 test_convnext3 levit_conv_128s::depth=(1,1,1)
naflexvit_base_patch16_parfac_gap:96:depth=2 hgnet_tiny densenetblur121d::block_config=(2,2,2,2)
coat_lite_tiny crossvit_9_dagger_240
deit_tiny_distilled_patch16_224::depth=2 dla60_res2net hrnet_w18_ssld
pvt_v2_b2_li::depths=(1,1,1,1) mvitv2_small_cls
swinv2_cr_tiny_ns_224::depths=(1,1,1,1) twins_pcpvt_small::depths=(1,1,1,1)
vit_relpos_small_patch16_rpn_224::depth=2 vit_srelpos_small_patch16_224::depth=2 selecsls60
vovnet39a ese_vovnet39b sam2_hiera_tiny:256:stages=(1,1,1,1) samvit_base_patch16:256:depth=3
hiera_small_abswin_256::stages=(1,1,1,1) lowformer_e1 efficientvit_l1
vit_base_patch16_clip_224::depth=2 vit_base_patch32_siglip_256::depth=2
vit_base_r26_s32_224::depth=2 aimv2_large_patch14_224::depth=2 vit_base_patch16_rpn_224::depth=2
vit_wee_patch16_reg1_gap_256::depth=2 vit_dlittle_patch16_reg1_gap_256::depth=2
vit_so150m_patch16_reg4_map_256::depth=2 wide_resnet50_2 vit_base_patch16_plus_240::depth=2
vit_base_mci_224::depth=2 fastvit_mci0 fastvit_sa12 repvit_m0_9 skresnext50_32x4d
tf_efficientnetv2_b0 tf_efficientnet_lite0 hardcorenas_a gc_efficientnetv2_rw_t
legacy_seresnext26_32x4d dpn68 dpn68b xception41
"""


def timm_network(row):
    name, size, arguments = (row + "::").split(":")[:3]
    arguments = eval(f"dict({arguments})")

    def make():
        import timm

        return timm.create_model(name, **arguments)

    def inputs(n):
        import timm

        return images(int(size or timm.get_pretrained_cfg(name).input_size[-1]))(n)

    return Network(name, make, inputs)


def timm_networks():
    return [timm_network(row) for row in TIMM.split()]


# ---- torchvision: the families that bench/networks.py does not have; networks for segmentation and detection ----

TORCHVISION = """
efficientnet_b0:64 efficientnet_v2_s:64 convnext_tiny:64 regnet_x_400mf:64 regnet_y_400mf:64 mobilenet_v3_small:64 swin_t:64
swin_v2_t:64 vit_b_32:224 maxvit_t:224 fcn_resnet50:64 deeplabv3_mobilenet_v3_large:64 lraspp_mobilenet_v3_large:64
"""
DETECTORS = """
ssdlite320_mobilenet_v3_large ssd300_vgg16 retinanet_resnet50_fpn fcos_resnet50_fpn fasterrcnn_mobilenet_v3_large_320_fpn
"""


def suppress(boxes, scores, limit):
    """What torchvision.ops.nms computes: the indices of the boxes that overlap no box of a higher score by more than ``limit``."""
    import torch

    order = scores.argsort(descending=True, stable=True)
    low, high = (
        torch.maximum(boxes[:, None, :2], boxes[:, :2]),
        torch.minimum(boxes[:, None, 2:], boxes[:, 2:]),
    )
    sizes = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    common = (high - low).clamp(min=0).prod(2)
    overlap = common / (sizes[:, None] + sizes - common)
    kept, gone = [], torch.zeros(len(boxes), dtype=torch.bool)
    for i in order.tolist():
        if not gone[i]:
            kept.append(i)
            gone |= overlap[i] > limit
    return torch.tensor(kept, dtype=torch.int64)


def define_nms():
    """Defines torchvision's operator nms where its wheel's own does not load, which is so beside PyTorch's CPU build."""
    import torch
    import torchvision
    from torchvision.extension import _has_ops

    if not _has_ops() and not hasattr(define_nms, "library"):
        torchvision.ops.boxes._assert_has_ops = lambda: None
        define_nms.library = torch.library.Library("torchvision", "IMPL")
        define_nms.library.impl("nms", suppress, "CPU")


def torchvision_network(row):
    name, size = row.split(":")

    def make():
        from torchvision.models import get_model

        is_whole = "resnet50" in name or "deeplab" in name or "lraspp" in name
        more = {"weights_backbone": None} if is_whole else {}
        return get_model(name, weights=None, **more)

    return Network(name, make, images(int(size)))


def detector(name):
    """A detector takes a list of images, which is another structure for each batch size."""

    def make():
        from torchvision.models import get_model

        define_nms()
        return get_model(name, weights=None, weights_backbone=None)

    def inputs(n):
        import torch

        return [[torch.rand(3, 128, 160) for _ in range(n)]]

    return Network(name, make, inputs, is_open=False)


def torchvision_networks():
    rows = [torchvision_network(row) for row in TORCHVISION.split()]
    return rows + [detector(name) for name in DETECTORS.split()]


# ---- transformers ----


def transformers_networks():
    import network_words as words

    def row(name):
        return Network(name, lambda: words.build(name), lambda n: words.inputs(name, n))

    return [row(name) for name in words.NETWORKS]


GROUPS = {
    "timm": timm_networks,
    "torchvision": torchvision_networks,
    "transformers": transformers_networks,
}
