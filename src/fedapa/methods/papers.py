"""The papers behind the methods: authors, title, where and when."""

from __future__ import annotations

from typing import NamedTuple


class Paper(NamedTuple):
    authors: str  # "First Last and First Last", as BibTeX wants them
    title: str
    venue: str
    year: int

    def bibtex(self, key: str) -> str:
        return (
            f"@inproceedings{{{key},\n  author    = {{{self.authors}}},\n  title     = {{{self.title}}},\n"
            f"  booktitle = {{{self.venue}}},\n  year      = {{{self.year}}}\n}}"
        )


PAPERS: dict[str, Paper] = {
    "mcmahan2017": Paper(
        'Brendan McMahan and Eider Moore and Daniel Ramage and Seth Hampson and Blaise Ag{\\"u}era y Arcas',
        "Communication-Efficient Learning of Deep Networks from Decentralized Data",
        "International Conference on Artificial Intelligence and Statistics (AISTATS)",
        2017,
    ),
    "arivazhagan2019": Paper(
        "Manoj Ghuhan Arivazhagan and Vinay Aggarwal and Aaditya Kumar Singh and Sunav Choudhary",
        "Federated Learning with Personalization Layers",
        "arXiv:1912.00818",
        2019,
    ),
    "li2020": Paper(
        "Tian Li and Anit Kumar Sahu and Manzil Zaheer and Maziar Sanjabi and Ameet Talwalkar and Virginia Smith",
        "Federated Optimization in Heterogeneous Networks",
        "Machine Learning and Systems (MLSys)",
        2020,
    ),
    "collins2021": Paper(
        "Liam Collins and Hamed Hassani and Aryan Mokhtari and Sanjay Shakkottai",
        "Exploiting Shared Representations for Personalized Federated Learning",
        "International Conference on Machine Learning (ICML)",
        2021,
    ),
    "li2021ditto": Paper(
        "Tian Li and Shengyuan Hu and Ahmad Beirami and Virginia Smith",
        "Ditto: Fair and Robust Federated Learning Through Personalization",
        "International Conference on Machine Learning (ICML)",
        2021,
    ),
    "li2021fedphp": Paper(
        "Xin-Chun Li and De-Chuan Zhan and Yunfeng Shao and Bingshuai Li and Shaoming Song",
        "{FedPHP}: Federated Personalization with Inherited Private Models",
        "European Conference on Machine Learning and Knowledge Discovery in Databases (ECML-PKDD)",
        2021,
    ),
    "huang2021": Paper(
        "Yutao Huang and Lingyang Chu and Zirui Zhou and Lanjun Wang and Jiangchuan Liu and Jian Pei and Yong Zhang",
        "Personalized Cross-Silo Federated Learning on Non-{IID} Data",
        "AAAI Conference on Artificial Intelligence",
        2021,
    ),
    "shamsian2021": Paper(
        "Aviv Shamsian and Aviv Navon and Ethan Fetaya and Gal Chechik",
        "Personalized Federated Learning using Hypernetworks",
        "International Conference on Machine Learning (ICML)",
        2021,
    ),
    "luo2022": Paper(
        "Jun Luo and Shandong Wu",
        "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning",
        "International Joint Conference on Artificial Intelligence (IJCAI)",
        2022,
    ),
    "ma2022": Paper(
        "Xiaosong Ma and Jie Zhang and Song Guo and Wenchao Xu",
        "Layer-Wised Model Aggregation for Personalized Federated Learning",
        "IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        2022,
    ),
    "tan2022": Paper(
        "Yue Tan and Guodong Long and Lu Liu and Tianyi Zhou and Qinghua Lu and Jing Jiang and Chengqi Zhang",
        "{FedProto}: Federated Prototype Learning across Heterogeneous Clients",
        "AAAI Conference on Artificial Intelligence",
        2022,
    ),
    "zhang2023fedala": Paper(
        "Jianqing Zhang and Yang Hua and Hao Wang and Tao Song and Zhengui Xue and Ruhui Ma and Haibing Guan",
        "{FedALA}: Adaptive Local Aggregation for Personalized Federated Learning",
        "AAAI Conference on Artificial Intelligence",
        2023,
    ),
    "xu2023": Paper(
        "Jian Xu and Xinyi Tong and Shao-Lun Huang",
        "Personalized Federated Learning with Feature Alignment and Classifier Collaboration",
        "International Conference on Learning Representations (ICLR)",
        2023,
    ),
    "zhang2023dbe": Paper(
        "Jianqing Zhang and Yang Hua and Jian Cao and Hao Wang and Tao Song and Zhengui Xue and Ruhui Ma "
        "and Haibing Guan",
        "Eliminating Domain Bias for Federated Learning in Representation Space",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2023,
    ),
    "yi2023": Paper(
        "Liping Yi and Gang Wang and Xiaoguang Liu and Zhuan Shi and Han Yu",
        "{FedGH}: Heterogeneous Federated Learning with Generalized Global Header",
        "ACM International Conference on Multimedia (MM)",
        2023,
    ),
    "dinh2020": Paper(
        "Canh T. Dinh and Nguyen H. Tran and Tuan Dung Nguyen",
        "Personalized Federated Learning with Moreau Envelopes",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2020,
    ),
    "fallah2020": Paper(
        "Alireza Fallah and Aryan Mokhtari and Asuman Ozdaglar",
        "Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2020,
    ),
    "deng2020": Paper(
        "Yuyang Deng and Mohammad Mahdi Kamani and Mehrdad Mahdavi",
        "Adaptive Personalized Federated Learning",
        "arXiv:2003.13461",
        2020,
    ),
    "karimireddy2020": Paper(
        "Sai Praneeth Karimireddy and Satyen Kale and Mehryar Mohri and Sashank J. Reddi and Sebastian U. Stich "
        "and Ananda Theertha Suresh",
        "{SCAFFOLD}: Stochastic Controlled Averaging for Federated Learning",
        "International Conference on Machine Learning (ICML)",
        2020,
    ),
    "chen2022": Paper(
        "Hong-You Chen and Wei-Lun Chao",
        "On Bridging Generic and Personalized Federated Learning for Image Classification",
        "International Conference on Learning Representations (ICLR)",
        2022,
    ),
    "liang2020": Paper(
        "Paul Pu Liang and Terrance Liu and Liu Ziyin and Nicholas B. Allen and Randy P. Auerbach and David Brent "
        "and Ruslan Salakhutdinov and Louis-Philippe Morency",
        "Think Locally, Act Globally: Federated Learning with Local and Global Representations",
        "arXiv:2001.01523",
        2020,
    ),
    "marfoq2022": Paper(
        "Othmane Marfoq and Giovanni Neglia and Richard Vidal and Laetitia Kameni",
        "Personalized Federated Learning through Local Memorization",
        "International Conference on Machine Learning (ICML)",
        2022,
    ),
    "oh2022": Paper(
        "Jaehoon Oh and SangMook Kim and Se-Young Yun",
        "{FedBABU}: Toward Enhanced Representation for Federated Image Classification",
        "International Conference on Learning Representations (ICLR)",
        2022,
    ),
    "li2021fedbn": Paper(
        "Xiaoxiao Li and Meirui Jiang and Xiaofei Zhang and Michael Kamp and Qi Dou",
        "{FedBN}: Federated Learning on Non-{IID} Features via Local Batch Normalization",
        "International Conference on Learning Representations (ICLR)",
        2021,
    ),
    "li2021moon": Paper(
        "Qinbin Li and Bingsheng He and Dawn Song",
        "Model-Contrastive Federated Learning",
        "IEEE/CVF Conference on Computer Vision and Pattern Recognition (CVPR)",
        2021,
    ),
    "sun2025": Paper(
        "Yuxia Sun and Aoxiang Sun and Siyi Pan and Zhixiao Fu and Jingcai Guo",
        "{FedAPA}: Server-side Gradient-Based Adaptive Personalized Aggregation for Federated Learning on "
        "Heterogeneous Data",
        "International Joint Conference on Artificial Intelligence (IJCAI)",
        2025,
    ),
    "ye2023": Paper(
        "Rui Ye and Zhenyang Ni and Fangzhao Wu and Siheng Chen and Yanfeng Wang",
        "Personalized Federated Learning with Inferred Collaboration Graphs",
        "International Conference on Machine Learning (ICML)",
        2023,
    ),
    "sattler2021": Paper(
        'Felix Sattler and Klaus-Robert M{\\"u}ller and Wojciech Samek',
        "Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy Constraints",
        "IEEE Transactions on Neural Networks and Learning Systems 32(8)",
        2021,
    ),
    "ghosh2020": Paper(
        "Avishek Ghosh and Jichan Chung and Dong Yin and Kannan Ramchandran",
        "An Efficient Framework for Clustered Federated Learning",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2020,
    ),
    "zhang2021fomo": Paper(
        "Michael Zhang and Karan Sapra and Sanja Fidler and Serena Yeung and Jose M. Alvarez",
        "Personalized Federated Learning with First Order Model Optimization",
        "International Conference on Learning Representations (ICLR)",
        2021,
    ),
    "marfoq2021": Paper(
        "Othmane Marfoq and Giovanni Neglia and Aur{\\'e}lien Bellet and Laetitia Kameni and Richard Vidal",
        "Federated Multi-Task Learning under a Mixture of Distributions",
        "Advances in Neural Information Processing Systems (NeurIPS)",
        2021,
    ),
}
